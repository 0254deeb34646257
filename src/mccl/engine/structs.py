"""The C vocabulary of ``native/include/mccl.h`` in ctypes: enumerations and structs."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass

ABI_VERSION = 1
"""``MCCL_ABI_VERSION`` this module was written against."""

ANY_SOURCE = -1


class DType(enum.IntEnum):
    """``mccl_dtype``."""

    U8 = 0
    I8 = 1
    I16 = 2
    I32 = 3
    I64 = 4
    F16 = 5
    BF16 = 6
    F32 = 7
    F64 = 8
    BOOL = 9
    C64 = 10
    C128 = 11


class RedOp(enum.IntEnum):
    """``mccl_redop``."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8


NO_REDOP = 255
NO_COLLECTIVE = 255


class Status(enum.IntEnum):
    """``mccl_status``."""

    OK = 0
    PENDING = 1
    WAIT_TIMEOUT = 2
    BROKEN = 3
    INVALID = 4
    FORKED = 5


class Failure(enum.IntEnum):
    """``mccl_failure``: what broke a communicator."""

    NONE = 0
    PEER_DIED = 1
    PEER_SILENT = 2
    PEER_LEFT = 3
    TIMEOUT = 4
    MISMATCH = 5
    CORRUPT = 6
    ABORTED = 7
    REMOTE = 8
    INTERNAL = 9


class Channel(enum.IntEnum):
    """``mccl_channel``: what a link carries."""

    COLLECTIVE_TX = 0
    COLLECTIVE_RX = 1
    P2P_TX = 2
    P2P_RX = 3
    CONTROL = 4


class CStep(ctypes.Structure):
    """``mccl_step``."""

    _fields_ = (
        ("kind", ctypes.c_uint8),
        ("flags", ctypes.c_uint8),
        ("reserved", ctypes.c_uint16),
        ("peer", ctypes.c_int32),
        ("dst_buffer", ctypes.c_uint32),
        ("src_buffer", ctypes.c_uint32),
        ("dst_offset", ctypes.c_uint64),
        ("src_offset", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("first_dep", ctypes.c_uint32),
        ("n_deps", ctypes.c_uint32),
    )


class CDep(ctypes.Structure):
    """``mccl_dep``."""

    _fields_ = (("step", ctypes.c_uint32), ("kind", ctypes.c_uint32))


class CScratch(ctypes.Structure):
    """``mccl_scratch``."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("accumulate", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class CCommConfig(ctypes.Structure):
    """``mccl_comm_config``."""

    _fields_ = (
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("epoch", ctypes.c_uint64),
        ("peer_timeout_us", ctypes.c_int64),
        ("park_bytes", ctypes.c_uint64),
        ("spin_us", ctypes.c_uint64),
        ("yield_spin", ctypes.c_uint32),
        ("checksum", ctypes.c_uint32),
        ("record_capacity", ctypes.c_uint32),
        ("send_thread", ctypes.c_uint32),
        ("name", ctypes.c_char * 64),
    )


class Ticket(ctypes.Structure):
    """``mccl_ticket``: a monotonic counter shared with a GPU, as three C pointers."""

    _fields_ = (
        ("read", ctypes.c_void_p),
        ("raise_", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class CPiece(ctypes.Structure):
    """``mccl_piece``."""

    _fields_ = (
        ("offset", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("produced_value", ctypes.c_uint64),
        ("consumed_value", ctypes.c_uint64),
    )


class COpDesc(ctypes.Structure):
    """``mccl_op_desc``."""

    _fields_ = (
        ("collective", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("redop", ctypes.c_uint32),
        ("wire_dtype", ctypes.c_uint32),
        ("root", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("count", ctypes.c_uint64),
        ("plan", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("premul", ctypes.c_double),
        ("timeout_us", ctypes.c_int64),
        ("tag", ctypes.c_uint64),
        ("produced", ctypes.c_void_p),
        ("consumed", ctypes.c_void_p),
        ("produced_value", ctypes.c_uint64),
        ("consumed_value", ctypes.c_uint64),
        ("pieces", ctypes.c_void_p),
        ("n_pieces", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class CP2PDesc(ctypes.Structure):
    """``mccl_p2p_desc``."""

    _fields_ = (
        ("send", ctypes.c_uint32),
        ("peer", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
        ("buffer", ctypes.c_void_p),
        ("tag", ctypes.c_uint64),
        ("dtype", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("timeout_us", ctypes.c_int64),
        ("produced", ctypes.c_void_p),
        ("consumed", ctypes.c_void_p),
        ("produced_value", ctypes.c_uint64),
        ("consumed_value", ctypes.c_uint64),
    )


class COpInfo(ctypes.Structure):
    """``mccl_op_info``."""

    _fields_ = (
        ("sequence", ctypes.c_uint64),
        ("source", ctypes.c_int32),
        ("status", ctypes.c_uint32),
        ("submitted_us", ctypes.c_int64),
        ("started_us", ctypes.c_int64),
        ("completed_us", ctypes.c_int64),
    )


class CError(ctypes.Structure):
    """``mccl_error``."""

    _fields_ = (
        ("failure", ctypes.c_uint32),
        ("culprit", ctypes.c_int32),
        ("reporter", ctypes.c_int32),
        ("collective", ctypes.c_uint32),
        ("sequence", ctypes.c_uint64),
        ("waited_us", ctypes.c_int64),
        ("phase", ctypes.c_char * 32),
        ("message", ctypes.c_char * 768),
    )


class CStats(ctypes.Structure):
    """``mccl_stats``."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "operations",
            "failed",
            "bytes_sent",
            "bytes_received",
            "bytes_reduced",
            "parked_bytes",
            "parked_peak",
        )
    ) + tuple(
        (name, ctypes.c_int64)
        for name in (
            "busy_us",
            "blocked_send_us",
            "blocked_receive_us",
            "blocked_ticket_us",
            "reduce_us",
        )
    )


class CRecord(ctypes.Structure):
    """``mccl_record``."""

    _fields_ = (
        ("sequence", ctypes.c_uint64),
        ("collective", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("redop", ctypes.c_uint32),
        ("root", ctypes.c_int32),
        ("count", ctypes.c_uint64),
        ("tag", ctypes.c_uint64),
        ("state", ctypes.c_uint32),
        ("waiting_for", ctypes.c_int32),
        ("submitted_us", ctypes.c_int64),
        ("started_us", ctypes.c_int64),
        ("completed_us", ctypes.c_int64),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("blocked_send_us", ctypes.c_int64),
        ("blocked_receive_us", ctypes.c_int64),
        ("blocked_ticket_us", ctypes.c_int64),
        ("reduce_us", ctypes.c_int64),
    )


class CPeerState(ctypes.Structure):
    """``mccl_peer_state``."""

    _fields_ = (
        ("peer", ctypes.c_int32),
        ("connected", ctypes.c_int32),
        ("silent_us", ctypes.c_int64),
        ("issued", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("collective", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class OpInfo:
    """One operation's number, source (receives) and times (µs since the Unix epoch, 0 not yet)."""

    sequence: int
    source: int
    submitted_us: int
    started_us: int
    completed_us: int


@dataclass(frozen=True, slots=True)
class NativeError:
    """What broke a communicator, as the engine saw it; ranks are group ranks, -1 unknown."""

    failure: Failure
    culprit: int
    reporter: int
    collective: int
    sequence: int
    waited_us: int
    phase: str
    message: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a communicator since its creation or last reset; times in µs, sizes in bytes."""

    operations: int
    failed: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int
    parked_bytes: int
    parked_peak: int
    busy_us: int
    blocked_send_us: int
    blocked_receive_us: int
    blocked_ticket_us: int
    reduce_us: int


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of the flight recorder."""

    sequence: int
    collective: int
    dtype: int
    redop: int
    root: int
    count: int
    tag: int
    state: int
    """0 scheduled, 1 started, 2 completed, 3 failed."""
    waiting_for: int
    submitted_us: int
    started_us: int
    completed_us: int
    bytes_sent: int
    bytes_received: int
    blocked_send_us: int
    blocked_receive_us: int
    blocked_ticket_us: int
    reduce_us: int


@dataclass(frozen=True, slots=True)
class PeerState:
    """What is known of a peer through its control link."""

    peer: int
    connected: bool
    silent_us: int
    issued: int
    completed: int
    collective: int


@dataclass(frozen=True, slots=True)
class Piece:
    """``mccl_piece``: part of a buffer handed over on its own, in elements."""

    offset: int
    count: int
    produced_value: int
    consumed_value: int


@dataclass(frozen=True, slots=True)
class Gate:
    """Rules O1 and O2 of one operation: wait for ``produced``, raise ``consumed`` when done."""

    produced: Ticket | None = None
    produced_value: int = 0
    consumed: Ticket | None = None
    consumed_value: int = 0
    pieces: tuple[Piece, ...] = ()
