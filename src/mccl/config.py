"""Configuration: every setting, its environment name, default and meaning.

This is the only file that reads the process environment for configuration. The
rest of the package takes a frozen :class:`Config`. Each field carries its own
documentation, from which ``mccl doctor`` and ``docs/configuration.md`` are made,
so the three cannot drift apart.

Precedence: explicit argument, then environment (the first of a setting's names
that is set), then default. A value that cannot be understood raises
:class:`ConfigError`; a name that is not known is warned about once.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mccl import _values
from mccl._values import Groups, InterfaceRule, TextFile

__all__ = ["Config", "ConfigError", "Described", "Groups", "InterfaceRule", "Launch", "TextFile"]

logger = logging.getLogger("mccl.config")


class ConfigError(ValueError):
    """A setting has a value that makes no sense; the text says what is accepted."""


# ---- the settings --------------------------------------------------------------------------


def _setting(
    default: Any, env: str | tuple[str, ...], parser: Callable[[str], Any], doc: str, **extra: Any
) -> Any:
    names = (env,) if isinstance(env, str) else env
    meta = {
        "env": names,
        "parser": parser,
        "doc": doc,
        "secret": False,
        "show": _values.show,
        **extra,
    }
    return field(default=default, metadata=meta, repr=not meta["secret"])


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of one process. Build with :meth:`from_env`, or by keyword in tests."""

    # Network
    socket_ifname: InterfaceRule | None = _setting(
        None,
        ("MCCL_SOCKET_IFNAME", "MCCL_IFNAME", "GLOO_SOCKET_IFNAME"),
        _values.parse_interfaces,
        "Interfaces to use: `en0` (prefix), `=eth0,eth1` (exact), `^docker,lo` (all but these). "
        "Several are several rails. `GLOO_SOCKET_IFNAME` is read as exact names. "
        "Default: the interface that routes to `MASTER_ADDR`.",
        section="Network",
    )
    listen_addr: str | None = _setting(
        None,
        "MCCL_LISTEN_ADDR",
        _values.parse_text,
        "Address to listen on and to announce to peers. Default: that of the chosen interface.",
        section="Network",
    )
    port_base: int = _setting(
        0,
        "MCCL_PORT_BASE",
        _values.parse_integer(0, 65535),
        "First port to listen on; a process uses this plus its local rank. 0: any free port.",
        section="Network",
    )
    nsocks: int = _setting(
        1,
        "MCCL_NSOCKS",
        _values.parse_integer(1, 16),
        "Data connections to one peer on each rail.",
        section="Network",
    )
    sock_bufsize: int | None = _setting(
        None,
        "MCCL_SOCK_BUFSIZE",
        _values.parse_optional_size,
        "Send and receive buffer of each socket, in bytes (`4M` is understood). "
        "Default (and 0): the system sizes them as traffic needs.",
        section="Network",
    )
    connect_timeout: float = _setting(
        30.0,
        "MCCL_CONNECT_TIMEOUT_MS",
        _values.parse_milliseconds,
        "Milliseconds to try to reach a peer (the field `connect_timeout` is in seconds).",
        section="Network",
        show=lambda seconds: f"{seconds * 1000:.0f}",
    )

    # Collectives
    algo: str = _setting(
        "auto",
        "MCCL_ALGO",
        _values.parse_choice({name: name for name in _values.ALGORITHMS}),
        f"Algorithm for every collective that has it: {', '.join(_values.ALGORITHMS)}. "
        "`auto` chooses by size, dtype and world size; so does a collective without the one named.",
        section="Collectives",
    )
    small_msg_threshold: int = _setting(
        256 << 10,
        "MCCL_SMALL_MSG_THRESHOLD",
        _values.parse_size,
        "All-reduces of at most this many bytes use recursive doubling, larger ones a ring.",
        section="Collectives",
    )
    groups: Groups = _setting(
        "auto",
        "MCCL_GROUPS",
        _values.parse_groups,
        "Groups of the two-level algorithms: `auto`, `off`, a group size, or ranks as in "
        "`0-11;12-23`.",
        section="Collectives",
    )
    tuning: TextFile | None = _setting(
        None,
        "MCCL_TUNING",
        _values.parse_text_file,
        "File of `mccl plan --tune`: where `MCCL_ALGO` is `auto`, it says which algorithm carries "
        "which size, for the world sizes and groups that it names.",
        section="Collectives",
    )
    wire_dtype: str | None = _setting(
        None,
        "MCCL_WIRE_DTYPE",
        _values.parse_choice(_values.WIRE_DTYPES),
        "Send fp32 all-reduces as `bfloat16` or `float16`: half the bytes, sums still in fp32.",
        section="Collectives",
    )
    park_bytes: int = _setting(
        64 << 20,
        ("MCCL_PARK_BYTES", "MCCL_DEMUX_PARK_BYTES"),
        _values.parse_size,
        "Point-to-point bytes kept for receives not yet posted; then the sender is held back.",
        section="Collectives",
    )
    spin_us: int = _setting(
        50,
        "MCCL_SPIN_US",
        _values.parse_integer(0, 1_000_000),
        "Microseconds to poll before blocking while traffic is expected. 0: block at once.",
        section="Collectives",
    )
    send_thread: bool | None = _setting(
        None,
        "MCCL_SEND_THREAD",
        _values.parse_optional_boolean,
        "Big sends on a thread of their own: `1`, `0`, or `auto` (where each rank of this host "
        "has two cores or more).",
        section="Collectives",
    )

    # Failure and safety
    peer_timeout: float = _setting(
        10.0,
        "MCCL_PEER_TIMEOUT",
        _values.parse_seconds,
        "Seconds without a sign of life after which a peer is given up.",
        section="Failure and safety",
    )
    checksum: bool = _setting(
        False,
        ("MCCL_CHECKSUM", "MCCL_TRANSPORT_CRC"),
        _values.parse_boolean,
        "Check every piece on the wire with CRC32C.",
        section="Failure and safety",
    )
    secret: bytes | None = _setting(
        None,
        "MCCL_SECRET",
        _values.parse_secret,
        "Secret of the job, the same on every rank. Default: random, shared through the store.",
        section="Failure and safety",
        secret=True,
    )
    secret_file: Path | None = _setting(
        None,
        "MCCL_SECRET_FILE",
        _values.parse_file,
        "File that holds the job's secret; an alternative to `MCCL_SECRET`.",
        section="Failure and safety",
    )

    # GPU memory
    unified_collective: bool = _setting(
        True,
        "MCCL_UNIFIED_COLLECTIVE",
        _values.parse_boolean,
        "Metal: reduce in place in unified memory. 0: go through a staging buffer.",
        section="GPU memory",
    )
    event_sync: bool = _setting(
        True,
        "MCCL_EVENT_SYNC",
        _values.parse_boolean,
        "Order GPU and network by events. 0: synchronise the stream (slow; for diagnosis).",
        section="GPU memory",
    )

    # Observation
    log_level: str = _setting(
        "WARNING",
        ("MCCL_LOG_LEVEL", "MCCL_DEBUG"),
        _values.parse_choice(_values.LOG_LEVELS),
        "What is logged: `error`, `warn`, `info` or `debug` (`MCCL_DEBUG=1`).",
        section="Observation",
    )
    record_size: int = _setting(
        1024,
        "MCCL_RECORD_SIZE",
        _values.parse_integer(0, 1 << 20),
        "Collectives that the flight recorder remembers. 0: none.",
        section="Observation",
    )
    record_stacks: bool = _setting(
        False,
        "MCCL_RECORD_STACKS",
        _values.parse_boolean,
        "Keep the Python stack of each recorded call.",
        section="Observation",
    )
    dump_dir: Path | None = _setting(
        None,
        "MCCL_DUMP_DIR",
        _values.parse_path,
        "Folder in which a failing rank writes its flight record. Default: none is written.",
        section="Observation",
    )
    metrics_port: int | None = _setting(
        None,
        "MCCL_METRICS_PORT",
        _values.parse_integer(0, 65535),
        "Serve Prometheus metrics on this port plus the local rank (0: any). Default: off.",
        section="Observation",
    )
    library: Path | None = _setting(
        None,
        "MCCL_LIBRARY",
        _values.parse_file,
        "The native library to load instead of the installed one (sanitizer builds, stand-ins).",
        section="Observation",
    )

    sources: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), repr=False, compare=False
    )
    """Field name -> environment name, for the fields that did not come from the default."""

    def __post_init__(self) -> None:
        if self.secret is not None and self.secret_file is not None:
            raise ConfigError(
                "MCCL_SECRET and MCCL_SECRET_FILE are both set; expected one. Unset the other."
            )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
        """Read the environment; `overrides` are field values that win over it.

        Raises:
            ConfigError: a value cannot be understood; the text names it and what is accepted.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for setting in _settings():
            for env in setting.metadata["env"]:
                if environ.get(env, "").strip() and setting.name not in values:
                    values[setting.name] = _parse(env, environ[env], setting.metadata["parser"])
                    sources[setting.name] = env
        for name, value in overrides.items():
            values[name] = value
            sources[name] = "argument"
        report_unknown(environ)
        return cls(**values, sources=MappingProxyType(sources))

    def shared_secret(self) -> bytes | None:
        """The job's secret from `secret` or `secret_file`; None when the store should make one.

        Raises:
            ConfigError: the file cannot be read or is too short.
        """
        if self.secret is not None or self.secret_file is None:
            return self.secret
        try:
            return _values.parse_secret(self.secret_file.read_text().strip())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"MCCL_SECRET_FILE={str(self.secret_file)!r} cannot be used: {error}. "
                "Expected a readable file with at least 8 characters."
            ) from error

    def describe(self) -> Iterator[Described]:
        """One row a setting: name, value, source, doc (and section, environment names, default)."""
        for setting in _settings():
            meta = setting.metadata
            value = getattr(self, setting.name)
            show = meta["show"]
            yield Described(
                name=setting.name,
                value="(hidden)" if meta["secret"] and value is not None else show(value),
                source=self.sources.get(setting.name, "default"),
                doc=meta["doc"],
                section=meta["section"],
                env=meta["env"],
                default=show(setting.default),
            )


@dataclass(frozen=True, slots=True)
class Described:
    """One row of :meth:`Config.describe`; everything is text to show."""

    name: str
    value: str
    source: str
    doc: str
    section: str
    env: tuple[str, ...]
    default: str


def _settings() -> Iterator[dataclasses.Field[Any]]:
    return (item for item in dataclasses.fields(Config) if "env" in item.metadata)


def _parse(env: str, text: str, parser: Callable[[str], Any]) -> Any:
    # Gloo matches interface names exactly; the same text must mean the same interfaces here.
    if env == "GLOO_SOCKET_IFNAME":
        text = "=" + text
    try:
        return parser(text)
    except ValueError as error:
        shown = "(hidden)" if env == "MCCL_SECRET" else repr(text)
        raise ConfigError(
            f"{env}={shown} is not understood; expected {error}. "
            f"Correct it, or unset {env} for the default."
        ) from error


# ---- names that are set but mean nothing -----------------------------------------------------

WITHOUT_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        "MCCL_TRANSPORT": "TCP is the only transport",
        "MCCL_CHUNK_BYTES": "the engine sizes its pieces itself",
        "MCCL_PIPELINE_DEPTH": "plans stream, there is no depth to set",
        "MCCL_CREDIT_MIN_CHUNK": "there are no credits; sockets hold an early rank back",
        "MCCL_COLLECTIVE_CONCURRENCY": "collectives overlap as far as their order allows",
        "MCCL_SMALL_ALGO": "see MCCL_ALGO",
        "MCCL_HEARTBEAT_INTERVAL_MS": "see MCCL_PEER_TIMEOUT",
        "MCCL_WATCHDOG_TIMEOUT_MS": "pass timeout= to init_process_group, or see MCCL_PEER_TIMEOUT",
        "MCCL_COMPRESSION": "see MCCL_WIRE_DTYPE, or use a DDP communication hook",
        "MCCL_TOPK_RATIO": "use a DDP communication hook",
        "MCCL_LINK_PROFILE": "see MCCL_SOCKET_IFNAME and MCCL_SOCK_BUFSIZE",
        "MCCL_STFT_BACKEND": "see mccl.numerics",
    }
)
"""Names that other software of this name reads, and why they do nothing here."""

_reported: set[str] = set()


def forget_reported() -> None:
    """Let names that were warned about be warned about again."""
    _reported.clear()


def known_names() -> frozenset[str]:
    """Every environment name that configures something here."""
    return frozenset(env for setting in _settings() for env in setting.metadata["env"])


def report_unknown(environ: Mapping[str, str]) -> None:
    """Log, once a name, each ``MCCL_*`` variable that is set and does nothing."""
    known = known_names()
    for name in sorted(environ):
        if not name.startswith("MCCL_") or name in known or name in _reported:
            continue
        _reported.add(name)
        if name in WITHOUT_EFFECT:
            logger.warning("%s is set but has no effect: %s.", name, WITHOUT_EFFECT[name])
            continue
        close = difflib.get_close_matches(name, known, n=1)
        advice = f" Did you mean {close[0]}?" if close else " See docs/configuration.md."
        logger.warning("%s is set but is not a setting of mccl.%s", name, advice)


# ---- what the launcher says -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What torchrun (or any launcher of its kind) put in the environment; None where it did not."""

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    run_id: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Launch:
        """Read RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

        Raises:
            ConfigError: one of the numbers is not a number.
        """
        environ = os.environ if environ is None else environ

        def number(name: str) -> int | None:
            text = environ.get(name, "").strip()
            return _parse(name, text, _values.parse_integer(0, 1 << 31)) if text else None

        return cls(
            rank=number("RANK"),
            world_size=number("WORLD_SIZE"),
            local_rank=number("LOCAL_RANK"),
            local_world_size=number("LOCAL_WORLD_SIZE"),
            master_addr=environ.get("MASTER_ADDR") or None,
            master_port=number("MASTER_PORT"),
            run_id=environ.get("TORCHELASTIC_RUN_ID") or None,
        )


def drop_variables(prefix: str, environ: MutableMapping[str, str] | None = None) -> list[str]:
    """Remove the variables that begin with `prefix` from the environment; the names removed."""
    environ = os.environ if environ is None else environ
    names = sorted(name for name in environ if name.startswith(prefix))
    for name in names:
        del environ[name]
    return names
