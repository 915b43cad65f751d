"""Profile drift: measured batches compared with the profile of the same batches. Pure.

Both sums are of the very same batches, whatever their sizes, so traffic cannot look like drift.
They fade: a batch counts half after `HALF_LIFE_BATCHES` more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

LATENCY: Final = 0.2
"""Relative error of a profile's latency that is borne."""

ENERGY: Final = 0.3
"""Relative error of its energy that is borne."""

LEAST_BATCHES: Final = 50
"""Batches, after fading, before anything is said."""

HALF_LIFE_BATCHES: Final = 200

RECOVERY: Final = 0.5
"""Share of the borne error below which a wrong profile counts as right again."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentKind:
    """Key of a profile's point.

    Attributes:
        model, variant: What runs.
        gpu: GPU type.
        slice: Slice kind.
        batch_size: Its largest batch.
        processes: Its workers.
    """

    model: str
    variant: str
    gpu: str
    slice: str
    batch_size: int
    processes: int


class BatchTotals(NamedTuple):
    """Batches that ended, summed up.

    Attributes:
        batches: Their number.
        time_s, profiled_s: What they took, and what the profile says, s.
        energy_j, profiled_j: Active energy, the same, J; 0: not known.
    """

    batches: float = 0.0
    time_s: float = 0.0
    profiled_s: float = 0.0
    energy_j: float = 0.0
    profiled_j: float = 0.0

    def plus(self, other: BatchTotals, keep: float = 1.0) -> BatchTotals:
        """Return the sum, with this part of what was seen before."""
        return BatchTotals(*(one * keep + more for one, more in zip(self, other, strict=True)))

    @property
    def latency_ratio(self) -> float:
        """Time over what the profile says; 1 where nothing is known."""
        return self.time_s / self.profiled_s if self.profiled_s > 0 else 1.0

    @property
    def energy_ratio(self) -> float:
        """Energy over what the profile says; 1 where nothing is known."""
        known = self.profiled_j > 0 and self.energy_j > 0
        return self.energy_j / self.profiled_j if known else 1.0


@dataclass(frozen=True, slots=True)
class DriftTrack:
    """One kind of segment. Attributes: seen (faded), wrong (its profile is)."""

    seen: BatchTotals = field(default_factory=BatchTotals)
    wrong: bool = False

    def after(self, new: BatchTotals) -> DriftTrack:
        """Return the track after more batches."""
        seen = self.seen.plus(new, 0.5 ** (new.batches / HALF_LIFE_BATCHES))
        if seen.batches < LEAST_BATCHES:
            return replace(self, seen=seen)
        scale = RECOVERY if self.wrong else 1.0
        slow, hungry = LATENCY * scale, ENERGY * scale
        wrong = _beyond(seen.latency_ratio, slow) or _beyond(seen.energy_ratio, hungry)
        return DriftTrack(seen, wrong)


def _beyond(ratio: float, error: float) -> bool:
    return not 1 / (1 + error) <= ratio <= 1 + error
