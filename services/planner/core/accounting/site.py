"""Where energy is drawn, and whose slices are there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.kit.units import carbon_gco2e


@dataclass(frozen=True, slots=True)
class EmbodiedCarbon:
    """What a GPU is, to its embodied carbon.

    Attributes:
        embodied_gco2e_per_s: Carbon of its making over its lifetime.
        held: Share of it that each model's slices hold, 0..1; they sum to 1 at most.
    """

    embodied_gco2e_per_s: float = 0.0
    held: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def together(cls, boards: Iterable[EmbodiedCarbon]) -> EmbodiedCarbon:
        """Return several GPUs as one: a model holds of it what it holds of each by its carbon."""
        rate_gco2e_per_s, held_gco2e_per_s = 0.0, dict[str, float]()
        for board in boards:
            rate_gco2e_per_s += board.embodied_gco2e_per_s
            for model, share in board.held.items():
                known = held_gco2e_per_s.get(model, 0.0)
                held_gco2e_per_s[model] = known + board.embodied_gco2e_per_s * share
        rate = rate_gco2e_per_s or math.inf
        return cls(rate_gco2e_per_s, {m: held / rate for m, held in held_gco2e_per_s.items()})


@dataclass(frozen=True, slots=True)
class Site:
    """A node, to the account.

    Attributes:
        node, zone: Names.
        pue: Wall energy per device energy, >= 1.
        intensity_gco2e_per_kwh: In force now.
        boards: Its GPUs, by UUID; those left out have no embodied carbon.
        intensity_error: Half-width of the intensity's 95 % interval, as a share.
        max_power_w: Power limits of its GPUs, W, by UUID; of one left out it is not known.
    """

    node: str
    zone: str
    pue: float
    intensity_gco2e_per_kwh: float
    boards: Mapping[str, EmbodiedCarbon] = field(default_factory=dict)
    intensity_error: float = 0.0
    max_power_w: Mapping[str, float] = field(default_factory=dict)

    def carbon_gco2e(self, energy_j: float) -> float:
        """Return the operational carbon of device energy drawn here."""
        return carbon_gco2e(energy_j * self.pue, self.intensity_gco2e_per_kwh)
