"""Readings of a device's energy, the right to change a node, and reasons of devices' errors."""

from dataclasses import dataclass
from typing import Final, Literal

from services.kit.errors import PermissionDenied

Method = Literal["counter", "integrated", "rapl", "model"]

NO_METER: Final = "NO_METER"
"""Reason of the error of a device that reports neither energy nor power, and never will."""

IN_USE: Final = "NVML_IN_USE"
"""Reason of errors of a device that a process still uses, perhaps only for a moment."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Energy and power of a whole device.

    Attributes:
        energy_j: Energy since the driver was loaded ("counter", "model") or since the first
            reading ("integrated", "rapl"), J. It may restart with the driver or the agent.
        power_w: Power now, W. None: the device reports energy only.
        method: "counter": the GPU counts; "integrated": from power samples; "rapl": the CPU
            counts; "model": not measured.
        busy_core_s: CPU only: how long the cores whose energy this is were busy since the machine
            started, with whatever, summed, s.
    """

    energy_j: float
    power_w: float | None
    method: Method
    busy_core_s: float | None = None


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """A board's power limit, W.

    Attributes:
        least_w, most_w: Constraints of the board.
        default_w: Limit after a restart.
        now_w: Limit in force.
    """

    least_w: float
    most_w: float
    default_w: float
    now_w: float


@dataclass(frozen=True, slots=True)
class Permissions:
    """Permission of the agent to change its node, not only to read it.

    Reading is the inventory, energy and metrics. Changing is all that a step does.

    Attributes:
        granted: It may.
        setting: The key that grants it, for the error message.
        clocks: It may lock and unlock SM clocks, also without the rest.
    """

    granted: bool = True
    setting: str = "nodes.<name>.control"
    clocks: bool = False

    def require(self) -> None:
        """Refuse an agent without the permission.

        Raises:
            PermissionDenied: The permission is missing.
        """
        if not self.granted:
            raise PermissionDenied(
                f"this agent only reads its node: {self.setting} is off; set it to true to let it "
                "change slices, segments and clocks",
                reason="CONTROL_OFF",
            )


ALL_GRANTED = Permissions()
