"""Live measurements of a serving configuration, compared with its profiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import add, sub
from typing import NamedTuple

from services.kit.profiles.core.profile import BatchCost, Profile, SliceShape
from services.planner.core.model import Model, Segment, SegmentKind, variants_of

MIN_BATCHES = 20
"""Batches below which a measurement is not significant."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Measured work of all segments of one kind together.

    Attributes:
        segments: Number of segments.
        requests: Answered requests.
        batches: Batches run.
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
    """Measurement of one evaluation.

    Attributes:
        span_s: Length of the evaluation, s.
        observed: Measured work by segment kind.
        latency_s: Latency at the SLO's percentile by model, as measured by the routers, s.
    """

    span_s: float
    observed: Mapping[SegmentKind, Observed]
    latency_s: Mapping[str, float]

    @property
    def segments(self) -> dict[SegmentKind, int]:
        """Segments of the configuration that served."""
        return {kind: observed.segments for kind, observed in self.observed.items()}


def ratios(
    models: Iterable[Model], kind: SegmentKind, observed: Observed, span_s: float
) -> tuple[float, float] | None:
    """Return measured over profiled time and energy of a batch; None: not significant.

    Batches and workers are rarely all full or busy: the profile is read at the mean batch size and
    the mean number of busy processes.

    Args:
        models: Models with their profiles.
        kind: Kind of the segments, with the profile's figures.
        observed: Their measured work.
        span_s: Length of the measurement, s.
    """
    variant = variants_of(models).get((kind.model, kind.variant))
    if variant is None or observed.batches < MIN_BATCHES or observed.busy_s <= 0:
        return None
    busy = min(1.0, observed.busy_s / (span_s * observed.segments * kind.processes))
    processes = round(1 + (kind.processes - 1) * busy)
    expected = _expected(variant.profile, kind, observed.requests / observed.batches, processes)
    if expected is None or expected.energy_j <= 0 or observed.energy_j <= 0:
        return None
    return (
        observed.busy_s / observed.batches / expected.latency_s,
        observed.energy_j / observed.batches / expected.energy_j,
    )


def _expected(
    profile: Profile, kind: SegmentKind, items: float, processes: int
) -> BatchCost | None:
    """Return the profile's cost of a batch of `items` on average, interpolated."""
    gpu = kind.pool.type
    shape: SliceShape = gpu.shape(gpu.geometry.kind(kind.profile), kind.gpus)
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


class SegmentCounters(NamedTuple):
    """Work of one segment since it began, as metered by its agent.

    Attributes:
        requests: Answered requests.
        batches: Batches run.
        busy_s: Busy time, summed over its workers, s.
        energy_j: Active energy, J.
    """

    requests: int = 0
    batches: int = 0
    busy_s: float = 0.0
    energy_j: float = 0.0

    def since(self, before: SegmentCounters) -> SegmentCounters:
        """Return the work since `earlier`; none if a counter fell: its agent lost it."""
        done = SegmentCounters(*map(sub, self, before))
        return done if min(done) >= 0 else NO_COUNTS

    def plus(self, other: SegmentCounters) -> SegmentCounters:
        """Return the sum of both."""
        return SegmentCounters(*map(add, self, other))


NO_COUNTS = SegmentCounters()


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of the routers for one model.

    A router reports the latency at the SLO's percentile per window. The latency of a span is
    estimated as the mean over windows and routers, weighted by answers. That is exact if all
    windows are alike, and too low if a few of them were much slower than the rest.

    Attributes:
        count: Number of answers.
        latency_sum_s: Sum over windows of answers x latency at the percentile, s.
    """

    count: int = 0
    latency_sum_s: float = 0.0

    def plus(self, count: int, latency_s: float) -> Answers:
        """Return the sums with another window."""
        return Answers(self.count + count, self.latency_sum_s + count * latency_s)


@dataclass(frozen=True, slots=True)
class Reading:
    """Values of all counters at one instant.

    Attributes:
        at_s: Time, monotonic, s.
        segments: Counters by segment id.
        answers: Answers by model.
    """

    at_s: float
    segments: Mapping[str, SegmentCounters] = field(default_factory=dict)
    answers: Mapping[str, Answers] = field(default_factory=dict)


@dataclass(slots=True)
class CounterReadings:
    """All counters as last reported.

    Attributes:
        collect: Flushes pending reports through `metered`; called before a reading.
    """

    collect: Callable[[], None] = lambda: None
    _segments: dict[str, Mapping[str, SegmentCounters]] = field(default_factory=dict)
    _answers: dict[str, Answers] = field(default_factory=dict)

    def metered(self, node: str, counters: Mapping[str, SegmentCounters]) -> None:
        """Set the counters of all segments of a node, by segment id."""
        self._segments[node] = counters

    def answered(self, model: str, count: int, latency_s: float) -> None:
        """Add a router's window: answers of a model, and their latency at the percentile, s."""
        self._answers[model] = self._answers.get(model, Answers()).plus(count, latency_s)

    def reading(self, at_s: float) -> Reading:
        """Return the values of all counters now."""
        self.collect()
        segments = {name: each for node in self._segments.values() for name, each in node.items()}
        return Reading(at_s, segments, dict(self._answers))


def measured(before: Reading, after: Reading, segments: Iterable[Segment]) -> Measurement:
    """Return the work of segments between two readings.

    Args:
        before: Reading when they were already serving.
        after: A later reading. Agents report twice a second and routers once: both readings are up
            to a second old, and the span should be much longer.
        segments: Segments that served throughout. One without an account at any agent did no work.

    Returns:
        The measurement; models without an answer have no latency.
    """
    counts: dict[SegmentKind, int] = {}
    done: dict[SegmentKind, SegmentCounters] = {}
    for segment in segments:
        kind, name = segment.kind, segment.segment_id
        was, now = before.segments.get(name, NO_COUNTS), after.segments.get(name, NO_COUNTS)
        counts[kind] = counts.get(kind, 0) + 1
        done[kind] = done.get(kind, NO_COUNTS).plus(now.since(was))
    return Measurement(
        span_s=after.at_s - before.at_s,
        observed={kind: Observed(counts[kind], *each) for kind, each in done.items()},
        latency_s=_latencies(before.answers, after.answers),
    )


def _latencies(before: Mapping[str, Answers], after: Mapping[str, Answers]) -> dict[str, float]:
    found: dict[str, float] = {}
    for model, now in after.items():
        was = before.get(model, Answers())
        if now.count > was.count:
            found[model] = (now.latency_sum_s - was.latency_sum_s) / (now.count - was.count)
    return found
