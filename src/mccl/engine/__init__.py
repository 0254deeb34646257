"""The door to the native engine (``native/include/mccl.h``), through ctypes.

``library`` loads it, ``structs`` mirrors its vocabulary, ``runtime`` wraps its handles.
"""

from mccl.engine.library import library_path, native_library
from mccl.engine.runtime import (
    Call,
    EngineBroken,
    NativeComm,
    NativePlan,
    Operation,
    reduce_supported,
    wait_completion,
    word_ticket,
)
from mccl.engine.structs import (
    ANY_SOURCE,
    Channel,
    DType,
    Failure,
    Gate,
    NativeError,
    OpInfo,
    PeerState,
    Piece,
    Record,
    RedOp,
    Stats,
    Status,
    Ticket,
)

__all__ = [
    "ANY_SOURCE",
    "Call",
    "Channel",
    "DType",
    "EngineBroken",
    "Failure",
    "Gate",
    "NativeComm",
    "NativeError",
    "NativePlan",
    "OpInfo",
    "Operation",
    "PeerState",
    "Piece",
    "Record",
    "RedOp",
    "Stats",
    "Status",
    "Ticket",
    "library_path",
    "native_library",
    "reduce_supported",
    "wait_completion",
    "word_ticket",
]
