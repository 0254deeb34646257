"""Who is in a group, how its ranks meet, and how it fails."""

from mccl.communicator.communicator import Communicator

__all__ = ["Communicator"]
