"""Prediction: closed forms, a fit to measurements, and a simulation of the actual plans."""

from mccl.model.fit import Fit, Point, fit, read
from mccl.model.hockney import PAPER, Hockney, bus_bandwidth, goodput
from mccl.model.network import Groups, Network, blocks
from mccl.model.predict import all_reduce_seconds
from mccl.model.simulate import SimulationError, run
from mccl.model.step import WORKLOADS, Step, Workload, step

__all__ = [
    "PAPER",
    "WORKLOADS",
    "Fit",
    "Groups",
    "Hockney",
    "Network",
    "Point",
    "SimulationError",
    "Step",
    "Workload",
    "all_reduce_seconds",
    "blocks",
    "bus_bandwidth",
    "fit",
    "goodput",
    "read",
    "run",
    "step",
]
