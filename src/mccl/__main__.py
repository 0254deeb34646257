"""``python -m mccl`` is the ``mccl`` command."""

from __future__ import annotations

import sys

from mccl.cli import main

if __name__ == "__main__":
    sys.exit(main())
