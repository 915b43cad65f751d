"""What is measured live while a configuration serves, against what its profile says."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.kit.profiles.core.profile import BatchCost, Profile, SliceShape
from services.planner.core.model import Model, SegmentKind

MIN_BATCHES = 20
"""Fewer say nothing."""


@dataclass(frozen=True, slots=True)
class Observed:
    """All segments of one kind together, as their agents metered them.

    Attributes:
        segments: How many.
        requests: Answered.
        batches: Batches they went in.
        busy_s: Busy time, summed over workers, s.
        energy_j: Active energy, J.
    """

    segments: int
    requests: int
    batches: int
    busy_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One evaluation.

    Attributes:
        span_s: How long the configuration served, s.
        observed: By segment kind.
        latency_s: By model, at its SLO's percentile, as the routers measured it, s.
    """

    span_s: float
    observed: Mapping[SegmentKind, Observed]
    latency_s: Mapping[str, float]

    @property
    def segments(self) -> dict[SegmentKind, int]:
        """The configuration that served."""
        return {kind: observed.segments for kind, observed in self.observed.items()}


def ratios(
    models: Iterable[Model], kind: SegmentKind, observed: Observed, span_s: float
) -> tuple[float, float] | None:
    """Return measured over profiled time and energy of a batch; None: nothing was learned.

    Batches are rarely full, and rarely are all processes busy; so the profile is read at the
    batch size and the number of busy processes that were met on average.

    Args:
        models: Where the profile is found.
        kind: The segments' kind, as its profile has it.
        observed: What they did.
        span_s: In how long, s.
    """
    profile = next(
        (
            variant.profile
            for model in models
            for variant in model.variants
            if (model.name, variant.name) == (kind.model, kind.variant)
        ),
        None,
    )
    if profile is None or observed.batches < MIN_BATCHES or observed.busy_s <= 0:
        return None
    busy = min(1.0, observed.busy_s / (span_s * observed.segments * kind.processes))
    processes = round(1 + (kind.processes - 1) * busy)
    expected = _expected(profile, kind, observed.requests / observed.batches, processes)
    if expected is None or expected.energy_j <= 0 or observed.energy_j <= 0:
        return None
    return (
        observed.busy_s / observed.batches / expected.latency_s,
        observed.energy_j / observed.batches / expected.energy_j,
    )


def _expected(
    profile: Profile, kind: SegmentKind, items: float, processes: int
) -> BatchCost | None:
    """Return the profile's cost of a batch of `items` on average, between the whole numbers."""
    gpu = kind.pool.type
    shape: SliceShape = gpu.shape(gpu.geometry.kind(kind.profile))
    clock_ratio = kind.clock_mhz / gpu.max_clock_mhz if kind.clock_mhz else 1.0
    low, high = math.floor(items), math.ceil(items)
    smaller = profile.batch(shape, max(1, low), processes, clock_ratio=clock_ratio)
    larger = profile.batch(shape, max(1, high), processes, clock_ratio=clock_ratio)
    if smaller is None or larger is None:
        return None
    weight = items - low
    return BatchCost(
        latency_s=(1 - weight) * smaller.latency_s + weight * larger.latency_s,
        energy_j=(1 - weight) * smaller.energy_j + weight * larger.energy_j,
    )
