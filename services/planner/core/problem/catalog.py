"""The catalog: every kind of segment worth considering, from the profiles."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from typing import NamedTuple

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.kit.config import Objective
from services.kit.profiles.core.language import TokenProfile, TokenTimes
from services.kit.profiles.core.profile import (
    BatchCost,
    Profile,
    SliceShape,
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
            for ratio in _ratios(place.pool.type, clock_ratios):
                points = measure(place, batch_sizes, max_processes, clock_ratio=ratio)
                found.extend(pareto(p for p in points if in_time(objective, model, p)))
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
    gpu = place.pool.type
    clock_mhz = 0 if clock_ratio >= 1.0 else round(clock_ratio * gpu.max_clock_mhz)
    limit = place.variant.max_batch
    sizes = batch_sizes if limit is None else dict.fromkeys(min(n, limit) for n in batch_sizes)
    shape = gpu.shape(place.slice_kind)
    for point in _points(place.profile, shape, tuple(sizes), max_processes, clock_ratio):
        yield SegmentKind(
            model=place.model.name,
            variant=place.variant.name,
            pool=place.pool,
            profile=place.slice_kind.name,
            batch_size=point.batch_size,
            processes=point.processes,
            latency_s=point.cost.latency_s,
            throughput_rps=point.processes * point.batch_size / point.cost.latency_s,
            energy_j=point.cost.energy_j / point.batch_size,
            accuracy=place.variant.accuracy,
            clock_mhz=clock_mhz,
            stage=place.stage,
            times_s=point.times_s,
            token_times=point.token_times,
        )


class _Point(NamedTuple):
    """A profile's figures for a segment, with a full batch and with smaller ones."""

    batch_size: int
    processes: int
    cost: BatchCost
    times_s: Times
    token_times: TokenTimes | None


@lru_cache(maxsize=1024)
def _points(
    profile: Profile,
    shape: SliceShape,
    batch_sizes: tuple[int, ...],
    max_processes: int,
    clock_ratio: float,
) -> tuple[_Point, ...]:
    """Return every point of a profile on a slice, at any latency.

    Cached: profiles never change, and computing the points took a third of a plan's time.
    """

    @cache
    def batch(items: int, busy: int) -> BatchCost | None:
        return profile.batch(shape, items, busy, clock_ratio=clock_ratio)

    return tuple(
        _Point(
            batch_size,
            processes,
            cost,
            batch_times_s(batch, batch_size, processes),
            _token_times(profile, shape, batch_size, processes, clock_ratio),
        )
        for processes, batch_size in product(range(1, max_processes + 1), batch_sizes)
        if (cost := batch(batch_size, processes)) is not None
    )


def _token_times(
    profile: Profile, shape: SliceShape, batch_size: int, processes: int, clock_ratio: float
) -> TokenTimes | None:
    if not isinstance(profile, TokenProfile):
        return None
    return profile.token_times(shape, batch_size, processes, clock_ratio=clock_ratio)


def _ratios(gpu: GpuType, clock_ratios: Sequence[float]) -> Iterable[float]:
    return dict.fromkeys(clock_ratios) if gpu.max_clock_mhz else (1.0,)


def in_time(objective: Objective, model: Model, kind: SegmentKind) -> bool:
    """Return whether `kind` keeps the latency rule: a batch takes at most theta x SLO.

    A pipeline's stage must keep its part of that, including the time to pass on its answer. For
    text, the first token, which waits for a slot, must take at most theta x its objective; the time
    between tokens, in which nothing waits, may take all of its own.
    """
    tokens = kind.token_times
    if tokens is not None and (
        tokens.token_s > model.slo_token_s
        or tokens.first_token_s > objective.latency_share * model.slo_first_token_s
    ):
        return False
    stage, rule_s = kind.stage, objective.latency_share * model.slo_latency_s
    return kind.latency_s + stage.transfer_s <= rule_s * stage.budget


def pareto(kinds: Iterable[SegmentKind]) -> list[SegmentKind]:
    """Return the kinds that no other beats in throughput, energy and latency; fastest first.

    Args:
        kinds: Kinds of one variant on one slice kind at one clock. Of equals, the first stays.
    """
    kept: list[SegmentKind] = []
    for kind in sorted(kinds, key=lambda k: (-k.throughput_rps, k.energy_j, k.latency_s)):
        if not any(o.energy_j <= kind.energy_j and o.latency_s <= kind.latency_s for o in kept):
            kept.append(kind)
    return kept


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
