"""One rank as a process of its own: reads commands from stdin, answers on stdout (JSON lines).

    member.py STORE_FILE RANK SIZE [engine]

{"do": "ensure", "send": [...], "recv": [...]} answers {"links": {"PEER/CHANNEL": [[local,
remote], ...]}} or {"error": [type, text, peer]}; {"do": "receive", "from": PEER}, with the
engine, waits for a message; {"do": "close"} ends it. Settings come from the environment.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys

import torch.distributed as dist
from fakes import FakeNative

from mccl.communicator import Communicator
from mccl.communicator.interfaces import enumerate_interfaces
from mccl.engine import DType, EngineBroken, NativeComm
from mccl.errors import MCCLError


def ends(fd: int) -> list[str]:
    with socket.socket(fileno=os.dup(fd)) as sock:
        return [sock.getsockname()[0], sock.getpeername()[0]]


def answer(**what: object) -> None:
    print(json.dumps(what), flush=True)


def receive(comm: Communicator, peer: int) -> None:
    comm.ensure(frozenset(), frozenset({peer}), p2p=True)
    answer(waiting=True)
    data = ctypes.create_string_buffer(16)
    try:
        comm.native.p2p(
            send=False,
            peer=peer,
            pointer=ctypes.addressof(data),
            nbytes=16,
            tag=0,
            dtype=DType.U8,
            sync=True,
            timeout_us=40_000_000,
        )
    except EngineBroken as error:
        raise comm.error() from error


def main() -> None:
    file, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store = dist.FileStore(file, size)
    try:
        comm = Communicator(
            store,
            rank,
            size,
            group_name="g",
            make_native=NativeComm if "engine" in sys.argv else FakeNative,  # type: ignore[arg-type]
        )
    except MCCLError as error:
        answer(error=[type(error).__name__, str(error), error.peer])
        return
    record = [[a.ip, p] for rail in comm._record.rails for a, p in rail.addresses]
    every = [a.ip for i in enumerate_interfaces() for a in i.addresses]
    answer(listening=record, addresses=every)
    native: FakeNative = comm.native  # type: ignore[assignment]
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "close":
            break
        try:
            if command["do"] == "receive":
                receive(comm, command["from"])
            comm.ensure(frozenset(command["send"]), frozenset(command["recv"]))
            links = list(native.links.items())  # the listener's thread may add to them meanwhile
            answer(links={f"{p}/{c}": [ends(f) for f in v] for (p, c), v in links})
        except MCCLError as error:
            answer(error=[type(error).__name__, str(error), error.peer])
    comm.close()
    answer(closed=True)


if __name__ == "__main__":
    main()
