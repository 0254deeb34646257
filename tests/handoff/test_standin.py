"""The stand-in aborts on what Metal and PyTorch would crash on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .standin import build

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-in replaces Metal on Linux"),
    pytest.mark.timeout(120),
]

PRELUDE = """
import ctypes, sys
from ctypes import *
lib = CDLL(sys.argv[1])
P = c_void_p
def f(name, result, *arguments):
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments
    return function
sel = f("sel_registerName", P, c_char_p)
push, pop = f("objc_autoreleasePoolPush", P), f("objc_autoreleasePoolPop", None, P)
device = f("MTLCreateSystemDefaultDevice", P)()
queue = f("_ZN5torch3mps18get_dispatch_queueEv", P)
command_buffer = f("_ZN5torch3mps18get_command_bufferEv", P)
commit = f("_ZN5torch3mps6commitEv", None)
WORK = CFUNCTYPE(None, P)
sync = f("dispatch_sync_f", None, P, P, WORK)
def send(target, name, *arguments):
    call = lib["objc_msgSend"]
    call.restype, call.argtypes = P, [P, P, *[c_uint64] * 5]
    return call(target, sel(name), *arguments, *[0] * (5 - len(arguments)))
def on_queue(work): sync(queue(), None, WORK(lambda _: work()))
event = send(device, b"newSharedEvent")
shared = send(device, b"newBufferWithLength:options:", 64, 0)
pool = push()
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("command_buffer()", "without the stream's dispatch queue held"),
        ("commit()", "without the stream's dispatch queue held"),
        (
            "lib.standin_own_stream(1)\n"
            "import threading\n"
            "t = threading.Thread(target=lambda: on_queue(commit)); t.start(); t.join()",
            "commit from a second thread",
        ),
        (
            "def work():\n"
            "  b = command_buffer(); send(b, b'blitCommandEncoder')\n"
            "  send(b, b'encodeSignalEvent:value:', event, 1)\n"
            "on_queue(work)",
            "while another encoder of the command buffer is open",
        ),
        (
            "def work():\n"
            "  b = command_buffer(); send(b, b'retain'); commit()\n"
            "  send(b, b'encodeWaitForEvent:value:', event, 1)\n"
            "on_queue(work)",
            "on a command buffer that was committed",
        ),
        (
            "def work():\n"
            "  b = command_buffer(); send(b, b'blitCommandEncoder'); commit()\n"
            "on_queue(work)",
            "commit while an encoder",
        ),
        ("send(event, b'release'); send(event, b'signaledValue')", "to a released object"),
        ("send(event, b'release'); send(event, b'release')", "over-release"),
        ("send(event, b'contents')", "unrecognized selector"),
        ("send(event, b'setSignaledValue:', 2); send(event, b'setSignaledValue:', 1)", "lowered"),
        ("on_queue(lambda: on_queue(commit))", "deadlock"),
        (
            "pop(pool)\n"
            "on_queue(lambda: send(command_buffer(), b'blitCommandEncoder'))",
            "no pool in place",
        ),
        (
            "private = f('standin_buffer_create', P, c_uint64, c_int)(64, 1)\n"
            "send(private, b'contents')",
            "private storage",
        ),
    ],
)  # fmt: skip
def test_misuse_aborts(tmp_path: Path, body: str, message: str) -> None:
    script = tmp_path / "misuse.py"
    script.write_text(PRELUDE + body)
    done = subprocess.run(
        [sys.executable, str(script), str(build())], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -6, f"not aborted: {done.returncode} {done.stderr}"
    assert message in done.stderr


def test_right_use_does_not_abort(tmp_path: Path) -> None:
    script = tmp_path / "use.py"
    script.write_text(
        PRELUDE
        + """
def work():
    b = command_buffer()
    send(b, b"encodeSignalEvent:value:", event, 1)
    encoder = send(b, b"blitCommandEncoder")
    other = send(device, b"newBufferWithLength:options:", 64, 0)
    send(encoder, b"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
         shared, 0, other, 0, 64)
    send(encoder, b"endEncoding")
    commit()
on_queue(work)
pop(pool)
lib.standin_synchronize()
assert send(event, b"signaledValue") == 1
"""
    )
    done = subprocess.run(
        [sys.executable, str(script), str(build())], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
