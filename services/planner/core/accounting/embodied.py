"""Embodied carbon: of a GPU's making, spread evenly over its lifetime (SCI, ISO/IEC 21031, M)."""

from collections.abc import Iterable, Mapping
from typing import Final

from services.kit.config import Embodied
from services.kit.mig import Placement
from services.planner.core.accounting.site import EmbodiedCarbon
from services.planner.core.model import GpuType

PUBLISHED_KGCO2E: Final[Mapping[str, float]] = {
    "a100-40gb": 181.0,
    "h100-80gb": 164.0,
}
"""From cradle to gate, one GPU with its board and heat sink, kgCO2e.

a100-40gb: PCIe card, parametric model of ADEME's study (Lees-Perasso, Ekchajzer, Roussilhe, De
Latour, Analyses de cycle de vie de GPU pour l'intelligence artificielle, 2026). h100-80gb: an
eighth of NVIDIA's HGX H100 baseboard (Product Carbon Footprint Summary, 2025: 1312 kgCO2e).
"""

_S_PER_YEAR: Final = 365.25 * 86_400


def embodied_carbon(
    settings: Embodied, gpu: GpuType, slices: Iterable[tuple[str, Placement]]
) -> EmbodiedCarbon:
    """Return what a GPU costs over time, and who holds how much of it.

    Args:
        settings: Its lifetime, and what making it cost where that is not as published.
        gpu: Its type.
        slices: Model and slice of each segment on it; a slice is its part of the GPU's
            streaming multiprocessors.
    """
    kgco2e = settings.kgco2e.get(gpu.name, PUBLISHED_KGCO2E.get(gpu.name, 0.0))
    held: dict[str, float] = {}
    for model, place in slices:
        share = gpu.geometry.kind(place.profile).sm_count / gpu.sm_count
        held[model] = held.get(model, 0.0) + share
    most = max(sum(held.values()), 1.0)
    return EmbodiedCarbon(
        embodied_gco2e_per_s=1e3 * kgco2e / (settings.lifetime_y * _S_PER_YEAR),
        held={model: share / most for model, share in held.items()},
    )
