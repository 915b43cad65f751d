"""What the fleet's energy cost: every joule at the intensity in force when it was reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.kit.units import carbon_gco2e


@dataclass(frozen=True, slots=True)
class Spent:
    """Energy and its carbon. Attributes: energy_j (device energy, J), carbon_gco2e (with PUE)."""

    energy_j: float = 0.0
    carbon_gco2e: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.energy_j + other.energy_j, self.carbon_gco2e + other.carbon_gco2e)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.energy_j - other.energy_j, self.carbon_gco2e - other.carbon_gco2e)


@dataclass(frozen=True, slots=True)
class Account:
    """The fleet's account, from its first reading on.

    Attributes:
        total: Spent so far.
        meters_j: Last reading of each GPU's meter, J.
    """

    total: Spent = Spent()
    meters_j: Mapping[str, float] = field(default_factory=dict)

    def read(
        self, meters_j: Mapping[str, float], *, pue: float, intensity_gco2e_per_kwh: float
    ) -> Account:
        """Return the account after one node's report.

        Args:
            meters_j: Readings of the node's GPUs, J, ever growing unless the device or its agent
                starts anew: a reading below the last one counts from zero.
            pue: Wall energy per device energy, >= 1.
            intensity_gco2e_per_kwh: In force now.

        Returns:
            An account whose totals are never below this one's. A GPU's first reading is where its
            account begins, and costs nothing.
        """
        energy_j = sum(
            reading if reading < last else reading - last
            for gpu, reading in meters_j.items()
            if (last := self.meters_j.get(gpu)) is not None
        )
        spent = Spent(energy_j, carbon_gco2e(energy_j * pue, intensity_gco2e_per_kwh))
        return Account(self.total + spent, {**self.meters_j, **meters_j})
