"""What simulated hardware must know of the work that runs on it."""

from __future__ import annotations

from typing import Protocol


class ActivityMeter(Protocol):
    """The work on one simulated GPU, as the process that does it measures it."""

    def energy_j(self) -> float:
        """Return the active energy since the meter was made, work in progress included, J."""
        ...

    def power_w(self) -> float:
        """Return the active power drawn now, W; idle power is apart."""
        ...

    def busy(self, slice_uuid: str) -> bool:
        """Return whether a live process holds a slice.

        Args:
            slice_uuid: A MIG UUID, or the GPU's where it is not cut.
        """
        ...

    def set_clock_ratio(self, ratio: float) -> None:
        """Learn the SM clock.

        Args:
            ratio: Clock in force over the highest, 0 < ratio <= 1.
        """
        ...


class NoActivity:
    """A GPU on which nothing ever runs."""

    def energy_j(self) -> float:
        """Return 0 J."""
        return 0.0

    def power_w(self) -> float:
        """Return 0 W."""
        return 0.0

    def busy(self, slice_uuid: str) -> bool:
        """Return False."""
        del slice_uuid
        return False

    def set_clock_ratio(self, ratio: float) -> None:
        """Do nothing: no work runs at any clock."""
