"""The metrics of this process for Prometheus, served where MCCL_METRICS_PORT asks for it."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from mccl.config import Config, Launch
from mccl.errors import UsageError
from mccl.observe.metrics import GroupMetrics, metrics

logger = logging.getLogger("mccl.observe")

COUNTERS = {
    "operations": "operations that ended",
    "failed": "operations that failed",
    "bytes_sent": "bytes sent to peers",
    "bytes_received": "bytes received from peers",
    "bytes_reduced": "bytes reduced",
    "busy": "seconds with an operation in progress",
    "blocked_send": "seconds blocked on sending",
    "blocked_receive": "seconds blocked on receiving",
    "blocked_ticket": "seconds blocked on a GPU",
    "reducing": "seconds spent reducing",
}
GAUGES = {
    "parked_bytes": "point-to-point bytes no receive has asked for",
    "bus_bandwidth": "bytes sent or received a second of busy time",
}
_SECONDS = {"busy", "blocked_send", "blocked_receive", "blocked_ticket", "reducing"}

_lock = threading.Lock()
_port: int | None = None


def ensure_served(config: Config) -> int | None:
    """Serve once a process where MCCL_METRICS_PORT is set; returns the port.

    Listens on MCCL_LISTEN_ADDR, else on the loopback interface only. A port in use is logged.
    Raises UsageError when the package prometheus_client is missing.
    """
    global _port
    if config.metrics_port is None:
        return None
    with _lock:
        if _port is not None:
            return _port
        client = _client()
        wanted = config.metrics_port and config.metrics_port + (Launch.from_env().local_rank or 0)
        address = config.listen_addr or "127.0.0.1"
        registry = client.CollectorRegistry(auto_describe=False)
        registry.register(Collector(client.core))
        try:
            server, _ = client.start_http_server(wanted, addr=address, registry=registry)
        except OSError as error:
            logger.error("metrics cannot be served on %s port %d: %s; training is not affected. "
                         "Choose another MCCL_METRICS_PORT.", address, wanted, error)  # fmt: skip
            return None
        _port = int(server.server_port)
        logger.info("serving metrics on http://%s:%d/metrics", address, _port)
        return _port


def _client() -> Any:
    try:
        client = importlib.import_module("prometheus_client")
        importlib.import_module("prometheus_client.core")
    except ImportError as error:
        raise UsageError(
            "MCCL_METRICS_PORT is set, but the package prometheus_client is not installed: "
            "pip install 'mccl[metrics]', or unset MCCL_METRICS_PORT"
        ) from error
    return client


class Collector:
    """Looks at the groups when Prometheus asks, and costs nothing between."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def collect(self) -> Iterator[Any]:
        """One family a counter, labelled by group and rank."""
        groups = list(metrics().values())
        for field, text in (COUNTERS | GAUGES).items():
            counter = field in COUNTERS
            kind = self._core.CounterMetricFamily if counter else self._core.GaugeMetricFamily
            name = f"mccl_{field}_seconds" if field in _SECONDS else f"mccl_{field}"
            family = kind(name, text, labels=["group", "rank"])
            for group in groups:
                family.add_metric(_labels(group), getattr(group, field))
            yield family
        latency = self._core.GaugeMetricFamily(
            "mccl_latency_seconds",
            "from the call to completion, over the flight recorder's newest operations",
            labels=["group", "rank", "operation", "quantile"],
        )
        for group in groups:
            for operation, found in group.latency.items():
                for quantile, value in (("0.5", found.p50), ("0.99", found.p99)):
                    latency.add_metric([*_labels(group), operation, quantile], value)
        yield latency


def _labels(group: GroupMetrics) -> list[str]:
    return [group.group, str(group.rank)]
