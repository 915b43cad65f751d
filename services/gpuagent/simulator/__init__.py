"""Simulated GPUs below NVML's C functions, with pynvml unmodified above them."""

from services.gpuagent.simulator.activity import ActivityMeter, NoActivity
from services.gpuagent.simulator.faults import Code
from services.gpuagent.simulator.library import SimulatedNvml, gpu_uuid, install

__all__ = ["ActivityMeter", "Code", "NoActivity", "SimulatedNvml", "gpu_uuid", "install"]
