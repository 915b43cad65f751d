"""Devices of a machine: its NVIDIA GPUs, or else its cores."""

from dataclasses import dataclass

import pynvml

from services.kit import cgroup

_NAME_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices found. Attributes: gpus (product names by UUID), cores (that may be used)."""

    gpus: dict[str, str]
    cores: int


def find_devices() -> Devices:
    """Return the devices of this machine; a driver that does not answer counts as no GPU."""
    return Devices(_gpus(), cgroup.whole_cores())


def _gpus() -> dict[str, str]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return {
            pynvml.nvmlDeviceGetUUID(each): pynvml.nvmlDeviceGetName(each)[:_NAME_WIDTH]
            for each in handles
        }
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()
