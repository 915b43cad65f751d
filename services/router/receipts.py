"""What one request cost, as its caller is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from services.kit.units import carbon_gco2e
from services.router.domain import Instance
from services.router.wire import double_parameter, string_parameter

Intensity = Callable[[str], float | None]
"""From a zone to its carbon intensity now, gCO2e/kWh; None where it is not known."""

Trailers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Energy and carbon of one request.

    Attributes:
        energy_j: Active energy: its share of its batch's.
        idle_energy_j: Idle energy of its slice since the last batch, shared by the batch.
        method: How energy_j was obtained: "counter", "integrated" or "model".
        carbon_gco2e: Of the active energy, PUE included; None where the intensity is not known.
    """

    energy_j: float
    idle_energy_j: float
    method: str
    carbon_gco2e: float | None


def receipt(
    instance: Instance, energy_j: float, idle_energy_j: float, method: str, intensity: Intensity
) -> Receipt:
    """Price a request's energy where it was used.

    Idle energy is reported but not priced: it would have been spent without the request.
    """
    known = intensity(instance.zone)
    carbon = None if known is None else carbon_gco2e(energy_j, known) * instance.pue
    return Receipt(energy_j, idle_energy_j, method, carbon)


@lru_cache(maxsize=1024)
def _variant(variant: str, accuracy: float) -> bytes:
    return string_parameter("model_variant", variant) + double_parameter("accuracy", accuracy)


@lru_cache(maxsize=16)
def _method(method: str) -> bytes:
    return string_parameter("energy_method", method)


_CARBON_UNKNOWN = string_parameter("carbon_status", "unknown")


def parameters(instance: Instance, cost: Receipt | None) -> bytes:
    """Return what to append to a serialized ModelInferResponse."""
    who = _variant(instance.variant, instance.accuracy)
    if cost is None:
        return who
    carbon = (
        _CARBON_UNKNOWN
        if cost.carbon_gco2e is None
        else double_parameter("carbon_gco2e", cost.carbon_gco2e)
    )
    return b"".join(
        (
            who,
            double_parameter("energy_j", cost.energy_j),
            double_parameter("energy_idle_j", cost.idle_energy_j),
            carbon,
            _method(cost.method),
        )
    )


def trailers(instance: Instance, cost: Receipt | None) -> Trailers:
    """Return the same as trailing metadata, for callers that do not read parameters."""
    found = [("cinquefoil-variant", instance.variant)]
    if cost is not None:
        found.append(("cinquefoil-energy-j", f"{cost.energy_j:.9g}"))
        if cost.carbon_gco2e is not None:
            found.append(("cinquefoil-carbon-gco2e", f"{cost.carbon_gco2e:.9g}"))
    return tuple(found)
