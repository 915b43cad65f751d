"""Is a profile right? What batches took, against what the profile says of the same batches. Pure.

Both sums are of the very same batches, whatever their sizes, so traffic cannot look like drift.
They fade: a batch counts half after `DriftRules.half_life_batches` more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from services.kit.errors import InvalidArgument


@dataclass(frozen=True, slots=True, order=True)
class SegmentKind:
    """What a profile has a point for.

    Attributes:
        model, variant: What runs.
        gpu: GPU type.
        profile: Slice kind.
        batch_size: Its largest batch.
        processes: Its workers.
    """

    model: str
    variant: str
    gpu: str
    profile: str
    batch_size: int
    processes: int


@dataclass(frozen=True, slots=True)
class DriftRules:
    """When a profile counts as wrong.

    Attributes:
        latency, energy: Relative error that is borne, > 0.
        least_batches: Batches, after fading, before anything is said.
        half_life_batches: Batches after which one counts half, > 0.
        recovery: Share of the borne error below which a wrong profile counts as right again.
    """

    latency: float = 0.2
    energy: float = 0.3
    least_batches: float = 50.0
    half_life_batches: float = 200.0
    recovery: float = 0.5

    def __post_init__(self) -> None:
        if min(self.latency, self.energy, self.half_life_batches) <= 0:
            raise InvalidArgument(f"errors and half-life must be > 0, got {self}")


RULES: Final = DriftRules()


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

    def after(self, new: BatchTotals, rules: DriftRules = RULES) -> DriftTrack:
        """Return the track after more batches."""
        seen = self.seen.plus(new, 0.5 ** (new.batches / rules.half_life_batches))
        if seen.batches < rules.least_batches:
            return replace(self, seen=seen)
        scale = rules.recovery if self.wrong else 1.0
        wrong = _beyond(seen.latency_ratio, rules.latency * scale) or _beyond(
            seen.energy_ratio, rules.energy * scale
        )
        return DriftTrack(seen, wrong)


def _beyond(ratio: float, error: float) -> bool:
    return not 1 / (1 + error) <= ratio <= 1 + error
