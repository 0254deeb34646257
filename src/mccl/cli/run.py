"""``mccl run``: torch's own elastic launcher, with the words a person would use."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mccl.cli.hosts import Host, HostsError, read_hosts, remote_command, split_master

DEFAULT_PORT = 29400
HANDED_ON = ("MCCL_", "TORCH_", "OMP_NUM_THREADS", "PYTHONPATH", "GLOO_SOCKET_IFNAME")
"""Beginnings of the names that ``--hosts`` takes along to the other machines."""

EPILOG = """examples:
  mccl run -n 2 train.py --epochs 3              two ranks on this machine
  mccl run --hosts hosts.txt train.py            one rank on each host, started over ssh
  mccl run --hosts a,b,c -n 2 train.py           two ranks on each of three hosts
  mccl run --nnodes 2 --node-rank 1 --master a train.py
                                                 this machine's part, started by hand or by
                                                 a scheduler; run it on each machine

hosts.txt has one host a line (`name` or `name slots=2`, # for comments), or MLX's JSON.
The script, the folder and the Python must be at the same place on every host.
"""


def add_parser(subparsers: Any) -> None:
    """Add ``run``."""
    parser = subparsers.add_parser(
        "run",
        help="start a training script on several ranks, here or on several hosts",
        description="Start a script on several ranks (a thin front over torch.distributed.run).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", "--ranks", type=_positive, default=1, help="ranks on each machine")
    parser.add_argument("--hosts", help="a file of hosts, or their names: a,b,c")
    parser.add_argument("--nnodes", default="1", help="machines in the job (or MIN:MAX)")
    parser.add_argument("--node-rank", type=int, help="which of them this is, from 0")
    parser.add_argument("--master", help=f"HOST[:PORT] where the ranks meet (port {DEFAULT_PORT})")
    parser.add_argument("--max-restarts", type=int, default=0, help="restarts after a failure")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("script", metavar="SCRIPT", help="the training script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Run the parsed command; returns the exit code."""
    problem = _problem(options)
    if problem:
        print(f"mccl run: {problem}", file=sys.stderr)
        return 2
    try:
        if options.hosts:
            return run_on_hosts(read_hosts(options.hosts), options)
        return run_here(launcher_arguments(options), options.ranks)
    except HostsError as error:
        print(f"mccl run: {error}", file=sys.stderr)
        return 2


def _problem(options: argparse.Namespace) -> str | None:
    """What is wrong with the combination of options, or None."""
    several = options.nnodes != "1"
    if not options.module and not Path(options.script).is_file():
        return f"{options.script}: there is no such file (for a module, add -m)"
    if options.hosts:
        if several or options.node_rank is not None:
            return "--hosts says both --nnodes and --node-rank; give one or the other"
        return None
    if several and not options.master:
        return "--nnodes needs --master HOST[:PORT], the same on every machine"
    if several and ":" not in options.nnodes and options.node_rank is None:
        return f"--nnodes {options.nnodes} needs --node-rank, 0 on the master and up from there"
    if not several and (options.master or options.node_rank is not None):
        return "--master and --node-rank need --nnodes"
    return None


def launcher_arguments(options: argparse.Namespace) -> list[str]:
    """The command line of ``torch.distributed.run`` for this machine's part."""
    words = ["--nproc-per-node", str(options.ranks), "--max-restarts", str(options.max_restarts)]
    if options.nnodes == "1":
        words.append("--standalone")
    else:
        address, port = split_master(options.master, DEFAULT_PORT)
        words += ["--nnodes", options.nnodes]
        if ":" in options.nnodes:
            words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:{port}"]
            words += ["--rdzv-id", "mccl"]
        else:
            words += ["--node-rank", str(options.node_rank)]
            words += ["--master-addr", address, "--master-port", str(port)]
    if options.module:
        words.append("--module")
    return [*words, options.script, *options.args]


def run_here(arguments: Sequence[str], ranks: int) -> int:
    """Run the elastic launcher in this process; returns its exit code."""
    import warnings

    from torch.distributed import run as launcher
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # The launcher would set 1; the cores that the ranks share are known here.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            launcher.main(list(arguments))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = (
            f"was ended by {signal.Signals(-failure.exitcode).name}"
            if failure.exitcode < 0
            else f"ended with exit code {failure.exitcode}"
        )
        print(f"mccl run: rank {rank} (pid {failure.pid}) {how}", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return 0


# ---- several hosts over ssh ------------------------------------------------------------------


def run_on_hosts(hosts: Sequence[Host], options: argparse.Namespace) -> int:
    """Start this command's part on each host over ssh; the first failure ends all of them."""
    ssh = shutil.which("ssh")
    if ssh is None:
        raise HostsError("--hosts needs ssh, which is not on the PATH")
    meeting = split_master(options.master or hosts[0].address, DEFAULT_PORT)
    script = [*(["-m"] if options.module else []), options.script, *options.args]
    environment = handed_on(dict(os.environ))
    processes: list[subprocess.Popen[str]] = []
    threads = []
    finished = threading.Event()
    try:
        for node, host in enumerate(hosts):
            line = remote_command(
                hosts,
                node,
                python=sys.executable,
                folder=str(Path.cwd()),
                ranks=options.ranks,
                master=meeting,
                script=script,
                environment=environment,
            )
            # -tt: with a terminal, closing the connection ends what runs on the other side.
            command = [ssh, "-tt", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host.ssh, line]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            processes.append(process)
            assert process.stdout is not None
            thread = threading.Thread(
                target=_relay, args=(host.ssh, process.stdout, process, finished), daemon=True
            )
            thread.start()
            threads.append(thread)
        return _wait(hosts, processes, finished)
    finally:
        for process in processes:
            _end(process)
        for thread in threads:
            thread.join(timeout=5)


def handed_on(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Settings that the other hosts need as well, but no secret: a command line is public."""
    if "MCCL_SECRET" in environ:
        print(
            "mccl run: MCCL_SECRET is not sent to the hosts, where a command line can be read by "
            "anyone. Put the secret in a file on each host and set MCCL_SECRET_FILE.",
            file=sys.stderr,
        )
    return sorted(
        (name, value)
        for name, value in environ.items()
        if name.startswith(HANDED_ON) and name != "MCCL_SECRET"
    )


def _relay(
    name: str, stream: IO[str], process: subprocess.Popen[str], finished: threading.Event
) -> None:
    """Print what a host says with its name in front, then report that it ended."""
    for line in stream:
        print(f"[{name}] {line.rstrip()}", flush=True)
    process.wait()
    finished.set()


def _wait(
    hosts: Sequence[Host], processes: Sequence[subprocess.Popen[str]], finished: threading.Event
) -> int:
    while True:
        finished.wait()
        finished.clear()
        codes = [process.poll() for process in processes]
        for host, code in zip(hosts, codes, strict=True):
            if code:
                why = "ssh could not connect" if code == 255 else f"exit code {code}"
                print(f"mccl run: {host.ssh}: {why}; ending the others", file=sys.stderr)
                return code if code > 0 else 128 - code
        if all(code == 0 for code in codes):
            return 0


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
