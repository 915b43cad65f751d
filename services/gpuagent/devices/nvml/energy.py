"""Energy of GPUs: counted where they count, else their power over time."""

from collections.abc import Callable
from typing import Any

import pynvml

from services.gpuagent.core.device_port import NO_METER, MeterReading
from services.gpuagent.devices.nvml.errors import translated
from services.kit.errors import FailedPrecondition


class PowerIntegral:
    """Sums power samples by the trapezoid rule.

    It is as good as the samples are dense: whatever happens between two of them is taken as a
    straight line.
    """

    def __init__(self) -> None:
        self._energy_j = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, now_s: float, power_w: float) -> float:
        """Take a sample; return the energy since the first one, J.

        Args:
            now_s: Monotonic time, s; never less than the last sample's.
            power_w: Power now, W.
        """
        if self._last is not None:
            last_s, last_w = self._last
            self._energy_j += (now_s - last_s) * (last_w + power_w) / 2
        self._last = (now_s, power_w)
        return self._energy_j


_MISSING = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)


class EnergyReader:
    """Reads GPUs' energy; it remembers the power of those that count none.

    Args:
        monotonic: Seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._integrals: dict[str, PowerIntegral] = {}

    def read(self, gpu_uuid: str, handle: Any) -> MeterReading:
        """Return a GPU's energy and power.

        Raises:
            FailedPrecondition: The GPU reports neither; the reason is NO_METER.
            ServiceError: NVML cannot answer now.
        """
        with translated(f"read the power of {gpu_uuid}"):
            power_w = _thousandths(pynvml.nvmlDeviceGetPowerUsage, handle)
            # Volta or newer
            energy_j = _thousandths(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        if energy_j is not None:
            return MeterReading(energy_j, power_w, "counter")
        if power_w is None:
            raise FailedPrecondition(
                f"{gpu_uuid} reports neither its energy nor its power", reason=NO_METER
            )
        integral = self._integrals.setdefault(gpu_uuid, PowerIntegral())
        return MeterReading(integral.add(self._monotonic(), power_w), power_w, "integrated")


def _thousandths(read: Callable[[Any], int], handle: Any) -> float | None:
    """Return W of what NVML counts in mW, J of what it counts in mJ; None: not on this GPU."""
    try:
        return read(handle) / 1000
    except _MISSING:
        return None
