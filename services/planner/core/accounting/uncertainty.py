"""How far what was saved may be off, by source: half-widths of 95 % intervals, as shares.

An error of one source is common to all that it touches: a meter that reads too much always does.
An entry therefore holds, for each source, by how much `saved` changes when the source errs by its
half-width. That is linear, so that entries add up, with their signs; sources are independent of
one another, so that their squares do.
"""

from collections.abc import Mapping
from typing import Final

from services.kit.request_cost import ENERGY_ERRORS

UNMETERED: Final = "model"
"""Energy that was not metered but comes of the profiles, as BASE's does: an error of theirs
changes both, and so only their difference."""

PROFILE: Final[Mapping[str, float]] = {"table": 0.1, "model": ENERGY_ERRORS[UNMETERED]}
"""Of a profile's energies, by its method. table: power of the profiles that were calibrated to
measured points (docs/measurements/planner.md)."""

INTENSITY: Final[Mapping[str, float]] = {
    "measured": 0.0,
    "estimated": 0.16,
    "forecast": 0.16,
    "held": 0.34,
    "assumed": 1.0,
}
"""Of an intensity, by provenance; what a source itself errs by is not known. forecast: National
Grid ESO's of 2021 (95 % of its hours were within), and taken to hold for estimates. held, assumed:
what the intensity differs by from that of three hours before, and from the year's mean, in the
median of 21 recorded zones and years."""


def meter_error(method: str) -> float:
    """Return the half-width of metered energy by its method; an unknown one counts as the worst."""
    return 0.0 if method == UNMETERED else ENERGY_ERRORS.get(method, max(ENERGY_ERRORS.values()))
