"""Constraints that bind a plan."""

from collections import Counter
from collections.abc import Iterator, Mapping

from cinquefoil.planner.v1.records import Binding
from services.planner.core.explain.explanation import percent
from services.planner.core.model import Configuration, Model, Pool, Problem, Score, SegmentKind
from services.planner.core.problem.catalog import Place, in_time, measure
from services.planner.core.problem.latency_rule import admissible_rps
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import gpcs, most_gpcs
from services.planner.core.strategies.exact import RELATIVE_GAP

TIGHT = 0.995
"""Share of a limit from which it counts as binding."""

_CHEAPER = 0.999
_ROUNDING = 1e-6


def bindings(
    problem: Problem, configuration: Configuration, score: Score, solve_s: float
) -> tuple[Binding, ...]:
    """Return the binding constraints of a configuration, the most binding first.

    The price of reconfiguration is not among them: it takes another solve (`explain`).

    Args:
        problem: The problem.
        configuration: The chosen configuration.
        score: Its score.
        solve_s: Time the decision took by the clock, s.
    """
    found = (
        *_fleet(problem, configuration),
        *_time_limit(problem, configuration, solve_s),
        *(
            binding
            for model in problem.models
            for binding in (
                *_capacity(problem, model, configuration),
                *_accuracy(problem, model, score),
                *_latency(problem, model, configuration),
            )
        ),
    )
    return tuple(sorted(found, key=lambda binding: -binding.used))


def _fleet(problem: Problem, configuration: Configuration) -> Iterator[Binding]:
    """Yield pools whose GPUs are all in use, with the slices that still fit there."""
    needed = gpus_needed(problem, configuration.segments) or {}
    slices: Counter[Pool] = Counter()
    for kind, count in configuration.segments.items():
        slices[kind.pool] += count * gpcs(kind)
    for pool, owned in problem.pools.items():
        if needed.get(pool, 0) < owned:
            continue
        total = owned * most_gpcs(pool.type.geometry)
        room = sorted(_that_fit(problem, configuration, pool))
        yield Binding(
            constraint="fleet",
            subject=pool_name(pool),
            used=min(1.0, slices[pool] / total),
            sentence=(
                f"All {owned} {pool_name(pool)} are in use, {slices[pool]} of {total} compute "
                f"slices; what still fits: {', '.join(room) or 'nothing'}."
            ),
        )


def _that_fit(problem: Problem, configuration: Configuration, pool: Pool) -> set[str]:
    """Return the slice kinds of which another fits into a pool."""
    kinds = {kind.profile: kind for kind in problem.catalog if kind.pool == pool}
    return {
        profile
        for profile, kind in kinds.items()
        if gpus_needed(problem, Counter(configuration.segments) + Counter([kind])) is not None
    }


def _capacity(problem: Problem, model: Model, configuration: Configuration) -> Iterator[Binding]:
    usable_rps = sum(
        count * admissible_rps(problem.objective, model, kind)
        for kind, count in _own(model, configuration).items()
    )
    load_rps = sum(configuration.load_rps.get(kind, 0.0) for kind in _own(model, configuration))
    if usable_rps > 0 and load_rps >= TIGHT * usable_rps:
        yield Binding(
            constraint="capacity",
            subject=model.name,
            used=min(1.0, load_rps / usable_rps),
            sentence=(
                f"{model.name}: its segments take {load_rps:.1f} req/s, all that a utilisation of "
                f"{percent(problem.objective.max_utilisation, 0)} and the latency objective allow."
            ),
        )


def _accuracy(problem: Problem, model: Model, score: Score) -> Iterator[Binding]:
    floor, reached = problem.objective.accuracy_floor, score.accuracy.get(model.name, 0.0)
    if floor > 0 and reached > 0 and floor >= TIGHT * reached / model.best.accuracy:
        least = floor * model.best.accuracy
        verdict = "below" if reached < (1 - _ROUNDING) * least else "at"
        yield Binding(
            constraint="accuracy_floor",
            subject=model.name,
            used=min(1.0, least / reached),
            sentence=(
                f"{model.name}: its accuracy of {reached:.4g} is {verdict} the floor, {least:.4g} "
                f"({percent(floor)} of {model.best.name}'s)."
            ),
        )


def _latency(problem: Problem, model: Model, configuration: Configuration) -> Iterator[Binding]:
    """Yield the nearest kind that would spend less energy but is too slow."""
    own = _own(model, configuration)
    found = [pair for kind in own for pair in _excluded(problem, model, kind)]
    if found:
        excluded, used = min(found, key=lambda pair: (pair[0].latency_s, pair[0].energy_j))
        limit_s = problem.objective.latency_share * model.slo_latency_s
        saved = 1.0 - excluded.energy_j / used.energy_j
        yield Binding(
            constraint="latency_rule",
            subject=model.name,
            used=min(1.0, used.latency_s / limit_s),
            sentence=(
                f"{model.name}: {excluded.variant} on {excluded.profile} in batches of "
                f"{_batches(excluded)} would take {percent(saved)} less energy per request than "
                f"{_batches(used)}, but {excluded.latency_s * 1e3:.0f} ms per batch; "
                f"{problem.objective.latency_share:g} x SLO allows {limit_s * 1e3:.0f} ms."
            ),
        )


def _excluded(
    problem: Problem, model: Model, kind: SegmentKind
) -> Iterator[tuple[SegmentKind, SegmentKind]]:
    """Yield kinds that the latency rule keeps from replacing one on its slice, with that one."""
    variant = next((each for each in model.variants if each.name == kind.variant), None)
    if variant is None:
        return
    slice_kind = kind.pool.type.geometry.kind(kind.profile)
    place = Place(model, variant, kind.pool, slice_kind, kind.stage)
    clock = kind.clock_mhz / kind.pool.type.max_clock_mhz if kind.clock_mhz else 1.0
    for other in measure(place, problem.batch_sizes, kind.processes, clock_ratio=clock):
        cheaper = other.energy_j < _CHEAPER * kind.energy_j
        if cheaper and not in_time(problem.objective, model, other):
            yield other, kind


def _time_limit(
    problem: Problem, configuration: Configuration, solve_s: float
) -> Iterator[Binding]:
    if configuration.gap is not None and configuration.gap > RELATIVE_GAP:
        yield Binding(
            constraint="time_limit",
            subject="",
            used=min(1.0, solve_s / problem.time_limit_s),
            sentence=(
                f"After {solve_s:.2f} s (limit: {problem.time_limit_s:g} s of processor time) the "
                f"plan is proven to within {percent(configuration.gap, 2)} of the best; more time "
                "might find a better one."
            ),
        )


def _own(model: Model, configuration: Configuration) -> Mapping[SegmentKind, int]:
    return {
        kind: count
        for kind, count in configuration.segments.items()
        if kind.model == model.name and count
    }


def _batches(kind: SegmentKind) -> str:
    return f"{kind.batch_size} by {kind.processes}"


def pool_name(pool: Pool) -> str:
    """Return a pool's name in sentences."""
    return f"{pool.type.name} in {pool.zone}"
