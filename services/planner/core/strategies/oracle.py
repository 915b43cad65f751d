"""ORACLE: the best of all uniform configurations, with profiles known (CLOVER, SC'23, section 5.1).

The paper profiles exhaustively, and "standardizes the model mixture and partition across all GPUs"
to limit the search: every GPU has the same layout and the same variants. Layouts contained in a
larger one are omitted, since a slice may stay idle.

Cases outside the paper's setting of one model on one kind of GPU:

- Several models: each has a pod of its own (the paper's words), as large as its load needs.
- Several pools: GPUs are uniform per pool; the pools are searched in turn until none improves.
- Parked GPUs: a configuration is also tried on just as many GPUs as the load needs.

Thousands of configurations per model and pool are judged: 0.3 s for EfficientNet on ten A100s, but
many seconds for tens of models.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations_with_replacement, islice, product

from services.kit.grouping import grouped
from services.kit.mig import maximal_layouts
from services.planner.core.model import Configuration, Model, Pool, Problem, SegmentKind
from services.planner.core.problem.latency_rule import admissible_rps
from services.planner.core.problem.load_split import apportion, with_load
from services.planner.core.problem.pricing import prices
from services.planner.core.strategies.candidates import Judge, distinct

MAX_CONFIGURATIONS = 10_000
"""Largest number of configurations per model and pool, for models with very many variants."""

PASSES = 4
"""Largest number of passes over the pools."""

EQUAL = 1e-9
"""Rounding error of floating point, relative."""

Segments = Mapping[SegmentKind, int]


def oracle(problem: Problem) -> Configuration:
    """Try every configuration that is the same on every GPU (CLOVER's ORACLE); ties: the first."""
    judge = Judge(problem)
    kinds = distinct(problem)
    parts = (
        _best(judge, [kind for kind in kinds if kind.model == name], pods)
        for name, pods in _pods(problem, kinds).items()
    )
    return with_load(prices(problem), _union(parts))


def _pods(problem: Problem, kinds: Sequence[SegmentKind]) -> Mapping[str, Mapping[Pool, int]]:
    """Return the number of GPUs per pool for each model, in proportion to its load's need."""
    fastest: dict[tuple[str, Pool], SegmentKind] = {}
    for kind in sorted(kinds, key=lambda each: each.throughput_rps):
        fastest[kind.model, kind.pool] = kind

    def offers(pool: Pool) -> Callable[[Model], SegmentKind | None]:
        return lambda model: fastest.get((model.name, pool))

    models = [model for model in problem.models if model.demand_rps > 0]
    slots = (offers(pool) for pool, count in problem.pools.items() for _ in range(count))
    pods: dict[str, dict[Pool, int]] = {}
    for kind, count in apportion(slots, models).items():
        pods.setdefault(kind.model, {})[kind.pool] = count
    return pods


def _best(judge: Judge, kinds: Sequence[SegmentKind], pods: Mapping[Pool, int]) -> Segments:
    """Return the best segments of one model. Other models add the same to each candidate."""
    chosen: dict[Pool, Segments] = {}
    best = judge({})
    for _ in range(PASSES if len(pods) > 1 else 1):
        before = best
        for pool, gpus in pods.items():
            own = [kind for kind in kinds if kind.pool == pool]
            rest = _union(segments for other, segments in chosen.items() if other != pool)
            for one in islice(_one_gpu(pool, own), MAX_CONFIGURATIONS):
                for count in _numbers(judge.problem, gpus, one):
                    segments = {kind: n * count for kind, n in one.items()}
                    met = judge(_union([rest, segments]))
                    if met.score.worth > best.score.worth:
                        best, chosen[pool] = met, segments
        if best is before:
            break
    return _union(chosen.values())


def _numbers(problem: Problem, gpus: int, one: Segments) -> Iterable[int]:
    """Return the numbers of GPUs to try a configuration on: all, and those that the load needs."""
    objective = problem.objective
    if objective.park_idle_gpus or any(kind.pool.type.use_power_w > 0 for kind in one):
        demand_rps = sum(
            m.demand_rps for m in problem.models if any(m.name == k.model for k in one)
        )
        models = {model.name: model for model in problem.models}
        usable_rps = sum(
            admissible_rps(problem.objective, models[kind.model], kind) * count
            for kind, count in one.items()
        )
        if usable_rps > 0:
            yield min(gpus, math.ceil(demand_rps / usable_rps))
    yield gpus


def _one_gpu(pool: Pool, kinds: Sequence[SegmentKind]) -> Iterator[Segments]:
    """Yield configurations of one GPU at one clock: all layouts, all variants on every slice."""
    for clock_mhz in dict.fromkeys(kind.clock_mhz for kind in kinds):
        options = grouped((kind.profile, kind) for kind in kinds if kind.clock_mhz == clock_mhz)
        for slices in _slices(pool, options):
            drawn = (combinations_with_replacement(options[name], n) for name, n in slices)
            for parts in product(*drawn):
                yield Counter(chain.from_iterable(parts))


def _slices(
    pool: Pool, options: Mapping[str, Sequence[SegmentKind]]
) -> Iterable[frozenset[tuple[str, int]]]:
    """Return the usable slices of each layout, each set once."""
    wasteful = {name for name in options if _is_wasteful(pool, name, options)}
    found = []
    for layout in maximal_layouts(pool.type.geometry):
        slices = Counter(placement.profile for placement in layout)
        if not wasteful & slices.keys():
            found.append(frozenset((name, n) for name, n in slices.items() if name in options))
    return dict.fromkeys(filter(None, found))


def _is_wasteful(pool: Pool, name: str, options: Mapping[str, Sequence[SegmentKind]]) -> bool:
    """Return whether a smaller slice runs the kind as fast for no more energy."""
    size = pool.type.geometry.kind(name).memory_slices
    smaller = (o for o in options if pool.type.geometry.kind(o).memory_slices < size)
    return any(
        all(any(_as_good(one, other) for one in options[option]) for other in options[name])
        for option in smaller
    )


def _as_good(one: SegmentKind, other: SegmentKind) -> bool:
    return (
        one.variant == other.variant
        and one.throughput_rps >= other.throughput_rps * (1 - EQUAL)
        and one.energy_j <= other.energy_j * (1 + EQUAL)
    )


def _union(parts: Iterable[Segments]) -> Segments:
    return sum((Counter(part) for part in parts), Counter[SegmentKind]())
