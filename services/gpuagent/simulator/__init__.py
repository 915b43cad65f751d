"""Simulated GPUs below NVML's C functions, with pynvml unmodified above them."""

from services.gpuagent.simulator.activity import ActivityMeter, NoActivity
from services.gpuagent.simulator.faults import Code
from services.gpuagent.simulator.injection import Order
from services.gpuagent.simulator.library import SimulatedNvml, gpu_uuid, install
from services.gpuagent.simulator.rights import ROOT, UNPRIVILEGED, Right

__all__ = [
    "ROOT",
    "UNPRIVILEGED",
    "ActivityMeter",
    "Code",
    "NoActivity",
    "Order",
    "Right",
    "SimulatedNvml",
    "gpu_uuid",
    "install",
]
