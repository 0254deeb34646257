"""Makes the test source of one run from the installed torch's own file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SOURCE = "torch.testing._internal.distributed.distributed_test"


def rewritten(backend: str) -> str:
    """The source of DistributedTest with ``backend`` in Gloo's place."""
    spec = find_spec(SOURCE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the installed torch does not ship {SOURCE}")
    text = Path(spec.origin).read_text(encoding="utf-8")
    if backend == "gloo":
        return text
    # torch's own front end refuses monitored_barrier for every backend but Gloo.
    text = text.replace("dist.monitored_barrier(", "__import__('mccl').monitored_barrier(")
    text = text.replace('"gloo"', f'"{backend}"')
    # DDP's logger (C++) has fields of Gloo's own settings, and fills them for Gloo alone.
    return text.replace(f'"backend_name") == "{backend}"', '"backend_name") == "gloo"')


def write(folder: Path, backend: str) -> None:
    """Put the source where ``programs/distributed_program.py`` looks for it."""
    (folder / "rewritten_distributed_test.py").write_text(rewritten(backend), encoding="utf-8")
