"""What a device tells of its energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

Method = Literal["counter", "integrated", "rapl", "model"]

NO_METER: Final = "NO_METER"
"""Reason of the error that says: this device tells neither energy nor power, and never will."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Energy and power of a whole device.

    Attributes:
        energy_j: Energy since the driver was loaded ("counter", "model") or since the first
            reading ("integrated", "rapl"), J. It may start anew when the driver or the agent does.
        power_w: Power now, W. None: only energy is told.
        method: "counter": the GPU counts; "integrated": from power samples; "rapl": the CPU
            counts; "model": nobody measured.
        busy_core_s: CPU only: how long the cores whose energy this is were busy since the machine
            started, with whatever, summed, s.
    """

    energy_j: float
    power_w: float | None
    method: Method
    busy_core_s: float | None = None


class Meter(Protocol):
    """What counts energy."""

    def energy_j(self) -> float:
        """Return the energy since some fixed moment, J; it never falls.

        Raises:
            Unavailable: It cannot be read now.
        """
        ...
