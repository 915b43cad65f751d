"""Quantities with short units."""

import math
from collections.abc import Mapping

from rich.text import Text

from services.kit.request_cost import ENERGY_ERRORS

_ROUNDS_TO_ZERO = 5e-3


def milliseconds(latency_s: float | None) -> str:
    """Return a latency in ms; "" for none."""
    if latency_s is None:
        return ""
    return f"{latency_s * 1e3:.0f} ms" if math.isfinite(latency_s) else "never"


def seconds(length_s: float) -> str:
    """Return a length of time, or a latency, in the unit that keeps it short."""
    if not length_s or length_s >= 10:
        return duration(length_s)
    for limit_s, unit in ((1e-3, "µs"), (1.0, "ms")):
        if length_s < limit_s:
            return f"{length_s / limit_s * 1e3:.3g} {unit}"
    return f"{length_s:.2g} s"


def percent(fraction: float) -> str:
    """Return a fraction of one in percent."""
    return f"{fraction:.1%}".replace("%", " %")


def change(before: float, after: float, *, more_is_better: bool = False) -> Text:
    """Return by how much a quantity changes, and whether that is better, in a word and a colour."""
    if before == after or math.isnan(before) or math.isnan(after):
        return Text("none")
    word, style = ("better", "green") if (after > before) == more_is_better else ("worse", "red")
    ratio = after / before - 1.0 if before > 0 <= after and math.isfinite(before) else math.inf
    size = f"{ratio:+.1%} ".replace("%", " %") if math.isfinite(ratio) else ""
    return Text(f"{size}{word}", style=style)


def change_by(difference: float, unit: str) -> Text:
    """Return by how much a quantity of which more is better changes, in its unit."""
    if math.isnan(difference) or abs(difference) < _ROUNDS_TO_ZERO:
        return Text("none")
    word, style = ("better", "green") if difference > 0 else ("worse", "red")
    return Text(f"{difference:+.2f} {unit} {word}", style=style)


def energy(energy_j: float) -> str:
    """Return an energy in the unit that keeps it short."""
    for limit, unit in ((1e3, "J"), (1e6, "kJ"), (1e9, "MJ")):
        if abs(energy_j) < limit:
            return f"{energy_j / limit * 1e3:.3g} {unit}"
    return f"{energy_j / 3.6e9:.3g} MWh"


def metered(energy_j: float, method: str) -> str:
    """Return an energy with the half-width of its 95 % interval and the method that gave it."""
    error = ENERGY_ERRORS.get(method)
    within = "" if error is None else f" ± {100 * error:.0f} %"
    return f"{energy(energy_j)}{within} ({method})"


def carbon(carbon_gco2e: float) -> str:
    """Return a mass of CO2 equivalent in the unit that keeps it short."""
    for limit, unit in ((1e-3, "µgCO2e"), (1.0, "mgCO2e"), (1e3, "gCO2e"), (1e6, "kgCO2e")):
        if abs(carbon_gco2e) < limit:
            return f"{carbon_gco2e / limit * 1e3:.3g} {unit}"
    return f"{carbon_gco2e / 1e6:.3g} tCO2e"


def duration(length_s: float) -> str:
    """Return a length of time in the largest unit of which there are two."""
    for limit_s, size_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if length_s < limit_s:
            return f"{length_s / size_s:.0f} {unit}"
    return f"{length_s / 86_400:.0f} d"


def alternatives(wanted_gpus: Mapping[str, int]) -> str:
    """Return GPUs that are wanted, for people."""
    return " or ".join(f"{count} x {gpu}" for gpu, count in sorted(wanted_gpus.items()))
