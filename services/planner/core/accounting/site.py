"""Nodes as places of energy use: carbon, embodied carbon and error of figures.

The error of savings is stated by source: half-widths of 95 % intervals, as shares. An error of one
source is common to all that it affects: a meter that reads too high always does. An entry therefore
holds, for each source, the change of `saved` when the source errs by its half-width. That is
linear: entries add up, with their signs. Sources are independent of one another: their squares add
up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Embodied
from services.kit.grouping import summed
from services.kit.hardware.gpu_types import published_kgco2e
from services.kit.request_cost import ENERGY_ERRORS
from services.kit.units import J_PER_KWH, carbon_gco2e
from services.planner.core.model import GpuType


@dataclass(frozen=True, slots=True)
class EmbodiedCarbon:
    """Embodied carbon of a GPU, and its split over models.

    Attributes:
        embodied_gco2e_per_s: Embodied carbon over its lifetime.
        held: Share of it held by each model's slices, 0..1; their sum is at most 1.
    """

    embodied_gco2e_per_s: float = 0.0
    held: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def together(cls, boards: Iterable[EmbodiedCarbon]) -> EmbodiedCarbon:
        """Return several GPUs as one, with each model's share weighted by carbon."""
        boards = tuple(boards)
        rate_gco2e_per_s = sum(board.embodied_gco2e_per_s for board in boards)
        held_gco2e_per_s = summed(
            (model, board.embodied_gco2e_per_s * share)
            for board in boards
            for model, share in board.held.items()
        )
        rate = rate_gco2e_per_s or math.inf
        return cls(rate_gco2e_per_s, {m: held / rate for m, held in held_gco2e_per_s.items()})


@dataclass(frozen=True, slots=True)
class Site:
    """A node in the account.

    Attributes:
        node, zone: Names of the node and its zone.
        pue: Wall energy per device energy, >= 1.
        intensity_gco2e_per_kwh: Intensity in force.
        boards: Its GPUs, by UUID; missing ones have no embodied carbon.
        intensity_error: Half-width of the intensity's 95 % interval, as a share.
        max_power_w: Power limits of its GPUs, W, by UUID; missing: unknown.
        eur_per_kwh: Price of a kWh with that of its carbon, EUR; 0: not known.
    """

    node: str
    zone: str
    pue: float
    intensity_gco2e_per_kwh: float
    boards: Mapping[str, EmbodiedCarbon] = field(default_factory=dict)
    intensity_error: float = 0.0
    max_power_w: Mapping[str, float] = field(default_factory=dict)
    eur_per_kwh: float = 0.0

    def carbon_gco2e(self, energy_j: float) -> float:
        """Return the operational carbon of device energy drawn here."""
        return carbon_gco2e(energy_j * self.pue, self.intensity_gco2e_per_kwh)

    def cost_eur(self, energy_j: float) -> float:
        """Return the cost of device energy drawn here, EUR."""
        return energy_j * self.pue * self.eur_per_kwh / J_PER_KWH


UNMETERED: Final = "model"
"""Energy from the profiles instead of a meter, like BASE's: an error of theirs changes both, and
thus only the difference."""

PROFILE: Final[Mapping[str, float]] = {"table": 0.1, "model": ENERGY_ERRORS[UNMETERED]}
"""Half-width of a profile's energies by its method. table: power of the profiles that were
calibrated to measured points (docs/measurements/planner.md)."""

INTENSITY: Final[Mapping[str, float]] = {
    "measured": 0.0,
    "estimated": 0.16,
    "forecast": 0.16,
    "held": 0.34,
    "assumed": 1.0,
}
"""Half-width of an intensity by provenance; a source's own error is unknown. forecast: National
Grid ESO's of 2021 (95 % of its hours were within), assumed for estimates as well. held, assumed:
differences from the intensity three hours before, and from the year's mean, in the median of 21
recorded zones and years."""


def meter_error(method: str) -> float:
    """Return the half-width of metered energy by method; an unknown one counts as the worst."""
    return 0.0 if method == UNMETERED else ENERGY_ERRORS.get(method, max(ENERGY_ERRORS.values()))


_S_PER_YEAR: Final = 365.25 * 86_400


def embodied_carbon(
    settings: Embodied, gpu: GpuType, slices: Iterable[tuple[str, Placement]]
) -> EmbodiedCarbon:
    """Return a GPU's embodied carbon over time, and each model's share of it.

    It is spread evenly over its lifetime (SCI, ISO/IEC 21031, M).

    Args:
        settings: Lifetime, and embodied carbon where it differs from the published figure
            (`services/kit/hardware/types`).
        gpu: GPU type.
        slices: Model and slice of each segment on it; a slice counts by its streaming
            multiprocessors.
    """
    kgco2e = settings.kgco2e.get(gpu.name, published_kgco2e(gpu.name))
    sizes = ((model, gpu.geometry.kind(place.profile).sm_count) for model, place in slices)
    held = summed((model, sm_count / gpu.sm_count) for model, sm_count in sizes)
    most = max(sum(held.values()), 1.0)
    return EmbodiedCarbon(
        embodied_gco2e_per_s=1e3 * kgco2e / (settings.lifetime_y * _S_PER_YEAR),
        held={model: share / most for model, share in held.items()},
    )
