"""Simulated GPUs below NVML's C functions, with pynvml unmodified above them."""

from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.devices.fake_nvml.core.sensors import ActivityMeter, NoActivity
from services.gpuagent.devices.fake_nvml.fake_node import ROOT, UNPRIVILEGED, Right
from services.gpuagent.devices.fake_nvml.library import FakeNvml, gpu_uuid, install

__all__ = [
    "ROOT",
    "UNPRIVILEGED",
    "ActivityMeter",
    "Code",
    "FakeNvml",
    "NoActivity",
    "Right",
    "gpu_uuid",
    "install",
]
