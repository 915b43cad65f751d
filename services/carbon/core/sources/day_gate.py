"""A gate between a source and its zone: what no grid does within a step is held back. Pure."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from services.carbon.core.model import Sample

DAY: Final = timedelta(days=1)

STEP: Final = 3.0
"""Factor by which a value may leave the range of the day before it."""

ENOUGH: Final = 6
"""Values of a day that make a range."""

CONFIRMED: Final = 3
"""Doubtful values in a row, alike, that are believed: the grid has changed."""

CLEAN_GCO2E_PER_KWH: Final = 10.0
"""Intensity next to which 0 may be a rounded value; elsewhere an average of 0 is a fault."""


class DayGate:
    """Doubts a zone's average intensity where it is 0, or far off the day's range.

    A doubtful value is held back, so that the last one stays in force; when others like it follow
    without a break, all of them are believed.
    """

    def __init__(self) -> None:
        self._held: list[Sample] = []

    def passed(self, sample: Sample, day: Sequence[Sample]) -> tuple[tuple[Sample, ...], str]:
        """Return the samples that are believed now, and why this one is not; "": it is.

        Args:
            sample: The next sample, by time.
            day: Samples of the day before it.
        """
        doubt = _doubt(sample.intensity_gco2e_per_kwh, day)
        if not doubt:
            self.know(sample)
            return (sample,), ""
        alike = (each for each in self._held if each.since < sample.since and _alike(each, sample))
        self._held = [*alike, sample]
        if len(self._held) < CONFIRMED:
            return (), doubt
        believed = tuple(self._held)
        self._held.clear()
        return believed, ""

    def know(self, sample: Sample) -> None:
        """Learn of a sample that is believed already: doubtful ones before it are glitches."""
        if self._held and sample.since > self._held[-1].since:
            self._held.clear()


def _doubt(value: float, day: Sequence[Sample]) -> str:
    values = [each.intensity_gco2e_per_kwh for each in day]
    if value <= 0 and min(values, default=CLEAN_GCO2E_PER_KWH) >= CLEAN_GCO2E_PER_KWH:
        return "is no average intensity: no grid is without any emission"
    low, high = min(values, default=0.0), max(values, default=0.0)
    if len(values) < ENOUGH or value <= 0 or low / STEP <= value <= max(high, 1.0) * STEP:
        return ""
    return f"is a step off the day's {low:g}..{high:g}, held until others confirm it"


def _alike(one: Sample, other: Sample) -> bool:
    a, b = one.intensity_gco2e_per_kwh, other.intensity_gco2e_per_kwh
    return 0 < a <= STEP * b and 0 < b <= STEP * a
