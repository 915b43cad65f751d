"""Spare segments: capacity beyond a model's load, to survive the loss of a GPU or node.

`exact` chooses segments with their redundancy; whether places for it exist is known once they are
placed. Other strategies know nothing of it. Where a promise is not kept, all models' spares are
chosen together: as few compute slices as keep most of the promises, beside the chosen segments.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from services.planner.core.model import Configuration, Problem, Segment, SegmentKind
from services.planner.core.placement.placement import place
from services.planner.core.placement.redundancy import missing
from services.planner.core.problem.failure_domains import demanding, surviving_rps
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.pricing import Prices, gpcs, prices, worthwhile
from services.planner.core.problem.score import score
from services.planner.core.solver.milp import Goal, Program
from services.planner.core.strategies.domain_rows import DomainRows
from services.planner.core.strategies.exact import candidates
from services.planner.core.strategies.exact_program import FEW_GPUS, TINY, Formulation
from services.planner.core.strategies.fleet_rows import add_gpus

Segments = Mapping[SegmentKind, int]

MARGINS = (0.0, 0.1, 0.3)
"""Further shares of what must survive that spares on a large fleet provide, where places lack."""

CLOSE = 0.01
"""Relative gap of the objective at which no other segments are considered."""

GAP = 0.02
"""Relative gap of the spares' compute slices at which the search may end on a large fleet."""


def reinforced(
    problem: Problem,
    configuration: Configuration,
    target: tuple[Segment, ...],
    new_id: Callable[[], str],
    *,
    free: bool,
) -> tuple[Configuration, tuple[Segment, ...]]:
    """Return a configuration and its segments that keep most of the promises of redundancy.

    Args:
        problem: The problem.
        configuration: The chosen configuration.
        target: Its segments at their places.
        new_id: Returns an unused segment id.
        free: Whether other segments than the chosen ones may serve, where those leave no room.
    """
    best = (missing(problem, target), 0.0)
    if not best[0]:
        return configuration, target
    known, chosen = prices(problem), configuration
    for other in _stronger(known, chosen, free=free):
        placed = place(problem, other, new_id)
        gap = _gap(known, chosen, other)
        found = (missing(problem, placed), 0.0 if gap is None else gap)
        if found < best:
            best, target, configuration = found, placed, replace(other, gap=gap)
        if not found[0] and found[1] <= CLOSE:
            break
    return configuration, target


def _gap(known: Prices, before: Configuration, after: Configuration) -> float | None:
    """Return the proven gap of a configuration in place of another: the bound holds for both."""
    if before.gap is None:
        return None
    first, second = (score(known.problem, each, known).objective for each in (before, after))
    bound = first + before.gap * max(abs(first), TINY)
    return max(0.0, bound - second) / max(abs(second), TINY)


def _stronger(known: Prices, chosen: Configuration, *, free: bool) -> Iterator[Configuration]:
    """Yield configurations with more redundancy, the nearest to the chosen one first."""
    few = len(known.problem.gpus) <= FEW_GPUS
    for margin in (0.0,) if few else MARGINS:
        found = _with_spares(known, chosen.segments, margin, places=few)
        if found is not None:
            yield _loaded(known, chosen, found)
    if few and free:
        program = Formulation(known, tuple(candidates(known)))
        program.add_places()
        other = program.solve(time_limit_s=known.problem.time_limit_s, tolerance=0.0)
        if other is not None:
            yield other


def _loaded(known: Prices, chosen: Configuration, segments: Segments) -> Configuration:
    """Return segments with the load that suits the models best that have spares."""
    grown = {kind.model for kind, n in segments.items() if n > chosen.segments.get(kind, 0)}
    split = with_load(known, segments)
    return Configuration(
        segments,
        {
            kind: (split if kind.model in grown else chosen).load_rps.get(kind, 0.0)
            for kind in segments
        },
    )


def _with_spares(
    known: Prices, chosen: Segments, margin: float, *, places: bool
) -> Segments | None:
    """Return the chosen segments and as few more as keep most promises; None: none in time."""
    kinds = (*chosen, *_spare_kinds(known, chosen))
    least = [chosen.get(kind, 0) for kind in kinds]
    program = Program()
    most = [known.problem.pools[kind.pool] * _per_gpu(kind) // kind.gpus for kind in kinds]
    counts = program.columns(len(kinds), upper=most, integer=True)
    program.terms(program.rows(len(kinds), low=least), counts, 1.0)
    layouts = add_gpus(program, known.problem, kinds, counts)
    rows = DomainRows(known, kinds, program, counts, margin)
    rows.add(layouts)
    if places:
        rows.add_places(layouts)
    sizes = {int(at): float(gpcs(kind)) for at, kind in zip(counts, kinds, strict=True)}
    goals = [
        Goal(dict.fromkeys(rows.missing, 1.0)),
        Goal(sizes, 0.0 if places else GAP, nodes=0 if places else 1),
    ]
    found = program.minimise(goals, time_limit_s=known.problem.time_limit_s / 2, hopes=1)
    if found is None:
        return None
    counted = {kind: found.count(int(at)) for at, kind in zip(counts, kinds, strict=True)}
    return {kind: n for kind, n in counted.items() if n > 0}


def _per_gpu(kind: SegmentKind) -> int:
    return kind.pool.type.geometry.kind(kind.profile).max_count


def _spare_kinds(known: Prices, chosen: Segments) -> Sequence[SegmentKind]:
    """Return the kinds of possible spares: of variants that serve, the best on each slice."""
    found: list[SegmentKind] = []
    for model in known.models.values():
        if not demanding(model):
            continue
        own = {kind.variant for kind in chosen if kind.model == model.name}
        places: dict[object, list[SegmentKind]] = {}
        for kind in known.problem.catalog:
            if kind.model == model.name and (kind.variant in own or not own):
                at = (kind.pool, kind.profile, kind.clock_mhz, kind.gpus)
                places.setdefault((kind.variant, kind.stage.index, *at), []).append(kind)
        for group in places.values():
            kept = worthwhile(known, group)
            found += sorted(
                kept, key=lambda kind: -surviving_rps(known.problem.objective, model, kind)
            )[:1]
    return [kind for kind in found if kind not in chosen]
