"""The catalog: every kind of segment worth considering, from the profiles."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from operator import itemgetter, le
from typing import NamedTuple
from weakref import WeakKeyDictionary

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.kit.config import Objective
from services.kit.mig import WHOLE
from services.kit.profiles.core.language import TokenProfile, TokenTimes
from services.kit.profiles.core.profile import (
    BatchCost,
    Profile,
    Times,
    batch_times_s,
)
from services.planner.core.model import (
    IN_ONE_PIECE,
    GpuType,
    Model,
    PipelineStage,
    Pool,
    Problem,
    SegmentKind,
    Variant,
)
from services.planner.core.problem.board_limit import held_ratio, most_active_w


@dataclass(frozen=True, slots=True)
class Place:
    """A variant of a model, or a stage of one, on a slice kind of a pool."""

    model: Model
    variant: Variant
    pool: Pool
    slice_kind: SliceProfile
    stage: PipelineStage = IN_ONE_PIECE

    @property
    def profile(self) -> Profile:
        """Profile of the variant, or of its stage."""
        whole = self.stage.of == 1
        return self.variant.profile if whole else self.variant.stages[self.stage.index][1]


def build(  # noqa: PLR0913  # the dimensions of the catalog
    models: Iterable[Model],
    pools: Iterable[Pool],
    objective: Objective,
    batch_sizes: Sequence[int],
    max_processes: int,
    *,
    clock_ratios: Sequence[float] = (1.0,),
) -> tuple[SegmentKind, ...]:
    """Return the segment kinds that a strategy may choose from.

    A kind stays if a full batch with every process busy takes at most theta x SLO (ParvaGPU IV-A),
    its memory fits, and no other kind of the same variant on the same slice at the same clock is
    better in throughput, energy and latency alike. The stages of a pipeline share theta x SLO.
    Figures are those at the clock to which the board's power limit lets it (`board_limit`).

    Args:
        models: The models to serve.
        pools: The GPUs to serve them on.
        objective: Its `latency_share` is theta.
        batch_sizes: Batch sizes to consider.
        max_processes: Most processes per segment, >= 1.
        clock_ratios: SM clocks to consider, as shares of a GPU's highest, 0 < ratio <= 1; where
            the highest is not known, only the highest.
    """
    pools = tuple(pools)
    found: list[SegmentKind] = []
    for model in models:
        for place in _places(model, pools):
            limits = _Limits.of(objective, model, place.stage)
            for ratio in _ratios(place.pool.type, clock_ratios):
                grid = _Grid(tuple(batch_sizes), max_processes, ratio)
                found.extend(_kind(place, point, ratio) for point in _worthy(place, grid, limits))
    return tuple(found)


def _places(model: Model, pools: Sequence[Pool]) -> Iterator[Place]:
    for variant, pool in product(model.variants, pools):
        for stage, _ in variant.stages:
            for slice_kind in pool.type.geometry.kinds:
                yield Place(model, variant, pool, slice_kind, stage)


def measure(
    place: Place, batch_sizes: Sequence[int], max_processes: int, *, clock_ratio: float = 1.0
) -> Iterator[SegmentKind]:
    """Yield the profile's segment kinds for a place at one clock, at any latency."""
    grid = _Grid(tuple(batch_sizes), max_processes, clock_ratio)
    for point in _points(place, grid, _Limits()):
        yield _kind(place, point, clock_ratio)


def _kind(place: Place, point: Point, clock_ratio: float) -> SegmentKind:
    gpu = place.pool.type
    return SegmentKind(
        model=place.model.name,
        variant=place.variant.name,
        pool=place.pool,
        profile=place.slice_kind.name,
        batch_size=point.batch_size,
        processes=point.processes,
        latency_s=point.latency_s,
        throughput_rps=point.throughput_rps,
        energy_j=point.energy_j,
        accuracy=place.variant.accuracy,
        clock_mhz=0 if clock_ratio >= 1.0 else round(clock_ratio * gpu.max_clock_mhz),
        stage=place.stage,
        times_s=point.times_s,
        token_times=point.token_times,
        gpus=place.variant.gpus,
    )


class _Grid(NamedTuple):
    """Batch sizes, numbers of processes and the clock of points."""

    batch_sizes: tuple[int, ...]
    max_processes: int
    clock_ratio: float


class _Limits(NamedTuple):
    """The latency rule: longest time of a batch, of a first token and between tokens, s."""

    batch_s: float = math.inf
    first_token_s: float = math.inf
    token_s: float = math.inf

    @classmethod
    def of(cls, objective: Objective, model: Model, stage: PipelineStage) -> _Limits:
        """Return the limits of a stage; see `in_time`."""
        share = objective.latency_share
        return cls(
            share * model.slo_latency_s * stage.budget - stage.transfer_s,
            share * model.slo_first_token_s,
            model.slo_token_s,
        )

    def allow(self, latency_s: float, tokens: TokenTimes | None) -> bool:
        """Return whether times keep the rule."""
        return latency_s <= self.batch_s and (
            tokens is None
            or (tokens.token_s <= self.token_s and tokens.first_token_s <= self.first_token_s)
        )


class Point(NamedTuple):
    """A profile's figures for a segment, as those of `SegmentKind`."""

    batch_size: int
    processes: int
    latency_s: float
    throughput_rps: float
    energy_j: float
    times_s: Times
    token_times: TokenTimes | None


_worthy_points: WeakKeyDictionary[
    Variant, dict[Hashable, tuple[tuple[_Grid, _Limits], list[Point]]]
] = WeakKeyDictionary()
"""The last answer for each place of a variant: to compute them takes most of a plan's time."""


def _worthy(place: Place, grid: _Grid, limits: _Limits) -> list[Point]:
    """Return the points of a place that keep the rule and that no other beats."""
    known = _worthy_points.setdefault(place.variant, {})
    key = (place.pool.type, place.slice_kind.name, place.stage.index, grid.clock_ratio)
    wanted = (grid, limits)
    held = known.get(key)
    if held is None or held[0] != wanted:
        held = known[key] = (wanted, pareto(_points(place, grid, limits)))
    return held[1]


def _points(place: Place, grid: _Grid, limits: _Limits) -> Iterator[Point]:
    """Yield every point of a place that keeps the rule."""
    limit, gpus = place.variant.max_batch, place.variant.gpus
    if gpus > 1 and place.slice_kind.name != WHOLE:
        return  # CUDA shows a process one MIG device at most, and no NVLink
    sizes = grid.batch_sizes
    sizes = sizes if limit is None else tuple(dict.fromkeys(min(n, limit) for n in sizes))
    profile, shape = place.profile, place.pool.type.shape(place.slice_kind, gpus)
    most = grid.max_processes if gpus == 1 else 1
    language = profile if isinstance(profile, TokenProfile) else None

    @cache
    def batch(ratio: float, items: int, busy: int) -> BatchCost | None:
        return profile.batch(shape, items, busy, clock_ratio=ratio)

    most_w = most_active_w(place.pool.type, place.slice_kind, gpus)
    for processes, batch_size in product(range(1, most + 1), sizes):
        ratio, cost = grid.clock_ratio, batch(grid.clock_ratio, batch_size, processes)
        if cost is not None and processes * cost.power_w > most_w:
            ratio = held_ratio(partial(batch, items=batch_size, busy=processes), processes, most_w)
            ratio = min(ratio, grid.clock_ratio)
            cost = batch(ratio, batch_size, processes)
        if cost is None or cost.latency_s > limits.batch_s:
            continue
        tokens = None
        if language is not None:
            tokens = language.token_times(shape, batch_size, processes, clock_ratio=ratio)
        if limits.allow(cost.latency_s, tokens):
            yield Point(
                batch_size,
                processes,
                cost.latency_s,
                processes * batch_size / cost.latency_s,
                cost.energy_j / batch_size,
                batch_times_s(partial(batch, ratio), batch_size, processes),
                tokens,
            )


def _ratios(gpu: GpuType, clock_ratios: Sequence[float]) -> Iterable[float]:
    return dict.fromkeys(clock_ratios) if gpu.max_clock_mhz else (1.0,)


def in_time(objective: Objective, model: Model, kind: SegmentKind) -> bool:
    """Return whether `kind` keeps the latency rule: a batch takes at most theta x SLO.

    A pipeline's stage must keep its part of that, including the time to pass on its answer. For
    text, the first token, which waits for a slot, must take at most theta x its objective; the time
    between tokens, in which nothing waits, may take all of its own.
    """
    limits = _Limits.of(objective, model, kind.stage)
    return limits.allow(kind.latency_s, kind.token_times)


def pareto(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other beats in throughput, energy and times; fastest first.

    One with batches beats none without: requests that run one by one wait in the router for the
    first free process, the others behind a batch.

    Args:
        points: Points of one variant on one slice kind at one clock. Of equals, the first stays.
    """
    kept: list[Point] = []
    costs: list[tuple[float, ...]] = []
    for cost, point in sorted(((_cost(each), each) for each in points), key=itemgetter(0)):
        if not any(all(map(le, other, cost)) for other in costs):
            kept.append(point)
            costs.append(cost)
    return kept


def _cost(point: Point) -> tuple[float, ...]:
    """Return the figures that are to be small, the throughput's first."""
    single, half, full = point.times_s or ((point.latency_s,),) * 3
    batched = float(point.batch_size > 1)
    return -point.throughput_rps, point.energy_j, full[-1], half[-1], single[-1], batched


def dedicated(problem: Problem, place: Place) -> SegmentKind | None:
    """Return the segment kind of one process that serves a place; None: it does not fit.

    The batch size is the fastest that keeps the latency rule. If none does, it is the smallest:
    such a segment runs, but all its load counts as late.
    """
    points = tuple(measure(place, problem.batch_sizes, 1))
    fast = [point for point in points if in_time(problem.objective, place.model, point)]
    smallest = min(points, key=lambda point: point.batch_size, default=None)
    return max(fast, key=lambda point: point.throughput_rps, default=smallest)


def whole(pool: Pool) -> SliceProfile:
    """Return the slice kind that takes a whole GPU of the pool."""
    return max(pool.type.geometry.kinds, key=lambda kind: (kind.sm_count, kind.memory_bytes))
