"""Versions of what a node's measurements depend on beside its GPUs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Final

import pynvml

from services.gpuagent.core.device_port import Devices
from services.gpuagent.devices.nvml.errors import translated

_RUNTIMES: Final = ("onnxruntime-gpu", "onnxruntime")
"""Distributions of the same package, of which the first one that is there is loaded."""


@dataclass(frozen=True, slots=True)
class Software:
    """Versions; "" where one is not known. Attributes: driver, cuda, onnxruntime."""

    driver: str = ""
    cuda: str = ""
    onnxruntime: str = ""


def of_cpu(_: Devices) -> Software:
    """Return the versions of a node without a GPU driver."""
    return Software(onnxruntime=_runtime())


def read(_: Devices) -> Software:
    """Return the versions; call it where NVML is called.

    Raises:
        Unavailable: The driver cannot answer now.
    """
    with translated("read the driver's version"):
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), ""
        with suppress(pynvml.NVMLError_FunctionNotFound):
            number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
            cuda = f"{number // 1000}.{number % 1000 // 10}"
    return Software(driver, cuda, _runtime())


def _runtime() -> str:
    for name in _RUNTIMES:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""
