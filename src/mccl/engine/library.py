"""Finds and loads the native library, and declares its functions."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

from mccl.engine.structs import (
    ABI_VERSION,
    CCommConfig,
    CDep,
    CError,
    COpDesc,
    COpInfo,
    CP2PDesc,
    CPeerState,
    CRecord,
    CScratch,
    CStats,
    CStep,
    Ticket,
)

_P = ctypes.POINTER
_VOID_P = ctypes.c_void_p
_U32 = ctypes.c_uint32
_U64 = ctypes.c_uint64
_I32 = ctypes.c_int32
_I64 = ctypes.c_int64

_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "mccl_plan_create": (
        _VOID_P,
        (_I32, _I32, _U32, _P(CScratch), _U32, _P(CStep), _U32, _P(CDep), _U32),
    ),
    "mccl_plan_destroy": (None, (_VOID_P,)),
    "mccl_comm_create": (_VOID_P, (_P(CCommConfig),)),
    "mccl_comm_set_peer_label": (ctypes.c_int, (_VOID_P, _I32, ctypes.c_char_p)),
    "mccl_comm_add_link": (ctypes.c_int, (_VOID_P, _I32, _U32, _P(_I32), _U32)),
    "mccl_comm_has_link": (ctypes.c_int, (_VOID_P, _I32, _U32)),
    "mccl_word_ticket": (None, (_VOID_P, _P(Ticket))),
    "mccl_submit": (ctypes.c_int, (_VOID_P, _P(COpDesc), _P(_VOID_P))),
    "mccl_p2p": (ctypes.c_int, (_VOID_P, _P(CP2PDesc), _P(_VOID_P))),
    "mccl_op_wait": (ctypes.c_int, (_VOID_P, _I64)),
    "mccl_op_test": (ctypes.c_int, (_VOID_P,)),
    "mccl_op_get_info": (ctypes.c_int, (_VOID_P, _P(COpInfo))),
    "mccl_op_release": (None, (_VOID_P,)),
    "mccl_wait_completion": (_U64, (_U64, _I64)),
    "mccl_comm_error": (ctypes.c_int, (_VOID_P, _P(CError))),
    "mccl_comm_abort": (ctypes.c_int, (_VOID_P, ctypes.c_char_p)),
    "mccl_comm_fail": (ctypes.c_int, (_VOID_P, _P(CError))),
    "mccl_comm_destroy": (None, (_VOID_P,)),
    "mccl_last_error": (ctypes.c_char_p, ()),
    "mccl_comm_get_stats": (ctypes.c_int, (_VOID_P, _P(CStats))),
    "mccl_comm_reset_stats": (ctypes.c_int, (_VOID_P,)),
    "mccl_comm_get_records": (_U32, (_VOID_P, _P(CRecord), _U32)),
    "mccl_comm_get_peer": (ctypes.c_int, (_VOID_P, _I32, _P(CPeerState))),
    "mccl_reduce": (
        ctypes.c_int,
        (_U32, _U32, _VOID_P, _VOID_P, _VOID_P, ctypes.c_size_t),
    ),
    "mccl_reduce_supported": (ctypes.c_int, (_U32, _U32)),
    "mccl_convert": (ctypes.c_int, (_U32, _VOID_P, _U32, _VOID_P, ctypes.c_size_t)),
    "mccl_divide": (ctypes.c_int, (_U32, _VOID_P, _VOID_P, ctypes.c_size_t, _U32)),
    "mccl_crc32c": (_U32, (_U32, _VOID_P, ctypes.c_size_t)),
    "mccl_kernel_isa": (ctypes.c_char_p, (ctypes.c_char_p,)),
    "mccl_abi_version": (ctypes.c_int, ()),
    "mccl_build_info": (ctypes.c_char_p, ()),
}


def library_path() -> Path:
    """Where the native library of this installation is expected."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return Path(__file__).resolve().parent.parent / "_lib" / f"libmccl.{suffix}"


@functools.cache
def native_library() -> ctypes.CDLL:
    """The loaded library with every function declared.

    Raises ImportError when it is missing or of another version.
    """
    path = library_path()
    if not path.exists():
        raise ImportError(
            f"mccl's native library is not at {path}; the package was not built. "
            "In a checkout run `make native`; otherwise: pip install --force-reinstall mccl"
        )
    library = ctypes.CDLL(str(path))
    library.mccl_abi_version.restype = ctypes.c_int
    found = library.mccl_abi_version()
    if found != ABI_VERSION:
        raise ImportError(
            f"{path} has interface version {found}, this Python code needs {ABI_VERSION}; "
            "rebuild with `make native` or reinstall mccl"
        )
    for name, (restype, argtypes) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = restype
        function.argtypes = argtypes
    return library


def last_error() -> str:
    """The calling thread's last explanation of an invalid argument."""
    return str((native_library().mccl_last_error() or b"").decode())
