"""Explanation of a plan: its binding constraints, its promises and its alternatives.

Pure, and bounded: a handful of short solves (`alternatives`) for a plan of any strategy.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cinquefoil.planner.v1.records import Alternative, Binding, Explanation, Outlook
from services.kit.plurals import counted
from services.kit.promises import accuracy_promise
from services.planner.core.explain.alternatives import (
    BreakEven,
    Judged,
    alternatives,
    break_even_points,
    difference,
    judge,
    quick,
)
from services.planner.core.explain.binding_constraints import bindings
from services.planner.core.explain.explanation import outlook_of, percent
from services.planner.core.explain.more_power import more_power
from services.planner.core.model import Configuration, Problem, Score, Segment
from services.planner.core.placement.redundancy import missing_redundancy, redundancy
from services.planner.core.plan import prediction_of
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.power_conditions import power_conditions
from services.planner.core.problem.power_curve import expected
from services.planner.core.problem.pricing import Prices, prices, running_kinds
from services.planner.core.problem.score import score
from services.planner.core.problem.shortfall import shortfalls
from services.planner.core.strategies import BY_OBJECTIVE, REGISTRY
from services.planner.core.strategies.exact_program import TINY

_WORTH_SHOWING = 1e-6
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class DecidedPlan:
    """A decided plan to explain.

    Attributes:
        version: Version of the plan; 0: a dry run.
        problem: The problem.
        configuration: The chosen configuration, with its proven gap.
        solve_s: Time the strategy took, s.
        segments: Its segments at their places; (): unknown.
        strategy: Strategy that made it.
    """

    version: int
    problem: Problem
    configuration: Configuration
    solve_s: float
    segments: tuple[Segment, ...] = ()
    strategy: str = "exact"


def explain(decided: DecidedPlan) -> Explanation:
    """Return the explanation of a plan.

    Raises:
        FailedPrecondition: The plan's slices do not fit on the problem's fleet.
    """
    problem, configuration = decided.problem, decided.configuration
    known, solve = prices(problem), REGISTRY["exact"]
    ours = expected(problem, configuration, score(problem, configuration, known))
    chosen = Judged(configuration, ours)
    optimum = judge(known, solve(quick(problem)))
    others = list(alternatives(problem, configuration, solve))
    if optimum is not None and optimum.graph != chosen.graph:
        others.append(optimum)
    base = judge(known, REGISTRY["base"](problem), fills=False)
    case = ExplainedCase(
        problem=problem,
        chosen=chosen,
        gap=_gap(chosen, optimum, others),
        base=base if base is not None and base.configuration.segments else None,
        runner_up=max(others, key=lambda each: each.score.worth, default=None),
        others=tuple(others),
        turning_points=tuple(break_even_points(problem, chosen, others, solve)),
        strategy=decided.strategy,
    )
    brief = _outlined(decided, chosen, known)
    binding = (
        *brief.bindings,
        *_reconfiguration(problem, chosen),
        *more_power(problem, chosen, solve),
    )
    return replace(
        brief,
        bindings=tuple(sorted(binding, key=lambda each: -each.used)),
        runner_up=_alternative(chosen, case.runner_up),
        base=_alternative(chosen, case.base),
        gap=case.gap,
        sentences=tuple(sentences(case)),
    )


def outline(decided: DecidedPlan) -> Explanation:
    """Return the explanation without a further solve: promises and binding constraints.

    Raises:
        FailedPrecondition: As for `explain`.
    """
    known = prices(decided.problem)
    problem, configuration = decided.problem, decided.configuration
    ours = expected(problem, configuration, score(problem, configuration, known))
    return _outlined(decided, Judged(configuration, ours), known)


def _outlined(decided: DecidedPlan, chosen: Judged, known: Prices) -> Explanation:
    problem = decided.problem
    binding = (
        *bindings(problem, decided.configuration, chosen.score, decided.solve_s),
        *_survival(problem, decided.segments),
    )
    return Explanation(
        version=decided.version,
        bindings=tuple(sorted(binding, key=lambda each: -each.used)),
        plan=outlook_of(prediction_of(chosen.score)),
        runner_up=None,
        base=None,
        gap=decided.configuration.gap,
        sentences=(),
        conditions=(
            *power_conditions(problem, decided.configuration, chosen.score),
            *shortfalls(problem, chosen.score, decided.configuration.limited),
            *(missing_redundancy(problem, decided.segments) if decided.segments else ()),
        ),
        unchanged=_unchanged(known),
    )


def _unchanged(known: Prices) -> Outlook | None:
    """Return the figures of the running segments under a problem's circumstances; None: none."""
    segments = Counter(running_kinds(known.problem))
    kept = judge(known, with_load(known, segments)) if segments else None
    return outlook_of(prediction_of(kept.score)) if kept else None


def _survival(problem: Problem, segments: Sequence[Segment]) -> Iterator[Binding]:
    """Yield the models' required survival, with the capacity left by the worst loss."""
    for model in problem.models if segments else ():
        if not model.survive:
            continue
        found = redundancy(problem, model, segments)
        yield Binding(
            constraint="survive",
            subject=model.name,
            used=min(1.0, found.needed_rps / found.left_rps) if found.left_rps else 1.0,
            sentence=(
                f"{model.name}: {found.needed_rps:.1f} of {model.demand_rps:.1f} req/s must "
                f"survive the loss of any one {model.spread or 'gpu'}; the worst, of {found.lost}, "
                f"leaves {found.left_rps:.1f}."
            ),
        )


def _gap(chosen: Judged, optimum: Judged | None, others: Sequence[Judged]) -> float | None:
    """Return a plan's proven gap; if its strategy proves none, that of a solve now.

    A strategy's claim holds only while none of the alternatives is better.
    """
    ours = chosen.score.objective
    best = max((each.score for each in others), key=lambda each: each.worth, default=chosen.score)
    claimed = chosen.configuration.gap
    if best.shortage < chosen.score.shortage:
        return None
    if claimed is not None and best.objective <= ours + max(claimed, _ROUNDING) * abs(ours):
        return claimed
    if optimum is None or optimum.configuration.gap is None:
        return None
    if optimum.score.shortage != chosen.score.shortage:
        return None
    bound = max(best.objective, optimum.score.objective)
    bound += optimum.configuration.gap * abs(optimum.score.objective)
    return max(0.0, bound - ours) / max(abs(ours), TINY)


def _alternative(chosen: Judged, other: Judged | None) -> Alternative | None:
    if other is None:
        return None
    return Alternative(
        description=difference(chosen, other),
        outlook=outlook_of(prediction_of(other.score)),
        loses=chosen.score.objective - other.score.objective,
    )


def _reconfiguration(problem: Problem, chosen: Judged) -> Iterator[Binding]:
    """Yield the price of reconfiguration where it alone prevents a better configuration."""
    objective = problem.objective
    if not problem.running or not (objective.switch_price or objective.layout_price):
        return
    update = {"switch_price": 0.0, "layout_price": 0.0}
    free = replace(problem, objective=objective.model_copy(update=update))
    better = REGISTRY["exact"](quick(free))
    known = prices(free)
    ours, theirs = judge(known, chosen.configuration), judge(known, better)
    priced = judge(prices(problem), better)
    if ours is None or theirs is None or priced is None:
        return
    gain = theirs.score.objective - ours.score.objective
    price = priced.score.reconfiguration - theirs.score.reconfiguration
    price -= chosen.score.reconfiguration - ours.score.reconfiguration  # energy is in both gains
    if theirs.score.shortage == ours.score.shortage and _WORTH_SHOWING < gain <= price:
        yield Binding(
            constraint="reconfiguration_price",
            subject="",
            used=min(1.0, gain / price),
            sentence=(
                f"{difference(chosen, theirs)} would gain {gain:.3g} points, but getting there "
                f"costs {price:.3g}."
            ),
        )


_OPTIMAL_GAP = 1e-6
_MAX_MODELS = 5
_SAME_POINTS = 5e-3  # rounds to 0.00
_SAME_LOAD = 1e-3  # of a model's demand


@dataclass(frozen=True, slots=True)
class ExplainedCase:
    """A plan and its alternatives.

    Attributes:
        problem: The problem.
        chosen: The chosen configuration.
        gap: Proven relative optimality gap, or None.
        base: Each model's best variant on whole GPUs, if it fits on the fleet.
        runner_up: The best of `others`.
        others: Configurations that differ from the chosen one.
        turning_points: Carbon weights beyond which another configuration would be better.
        strategy: Strategy that made the plan.
    """

    problem: Problem
    chosen: Judged
    gap: float | None
    base: Judged | None
    runner_up: Judged | None
    others: tuple[Judged, ...]
    turning_points: tuple[BreakEven, ...]
    strategy: str


def sentences(case: ExplainedCase) -> Iterator[str]:
    """Yield the explanation, the most important first."""
    yield _promise(case)
    yield from _unserved("The plan", case.chosen.score)
    yield from _accuracy_over_time(case.problem)
    if case.strategy not in BY_OBJECTIVE:
        yield (
            f"{case.strategy} decides by a rule of its own; what follows is in points of the "
            "deployment's objective, by which all strategies are judged."
        )
    yield _proof(case)
    yield from _against_base(case)
    yield from _against_others(case)
    yield from _turning_points(case)


def _promise(case: ExplainedCase) -> str:
    promised = case.chosen.score
    models = [model for model in case.problem.models if model.name in promised.latency_s]
    shown = [
        f"{model.name}: p{model.slo_percentile:g} {promised.latency_s[model.name] * 1e3:.0f} of "
        f"{model.slo_latency_s * 1e3:.0f} ms, accuracy {promised.accuracy[model.name]:.4g}"
        for model in models[:_MAX_MODELS]
    ]
    more = [f"{len(models) - len(shown)} other models"] if len(models) > len(shown) else []
    fleet = (
        f"The plan draws {promised.power_w:.0f} W and emits "
        f"{promised.carbon_gco2e_per_h:.1f} gCO2e/h with "
        f"{counted(promised.gpus, 'GPU')} powered"
    )
    return "; ".join([fleet, *shown, *more]) + "."


def _accuracy_over_time(problem: Problem) -> Iterator[str]:
    """Yield the mean accuracy that is kept, and what a point of it is worth now."""
    objective, prices_gco2e = problem.objective, problem.accuracy_price
    mean = objective.accuracy_mean
    if objective.kind == "cost":
        kwh = [
            f"{pool.eur_per_kwh:.4g} EUR and {pool.intensity_gco2e_per_kwh:.0f} gCO2e in {zone}"
            for zone, pool in {pool.zone: pool for pool in problem.pools}.items()
        ]
        yield (
            f"It costs the least: a kWh is {', '.join(kwh[:_MAX_MODELS])}, a tonne of CO2e "
            f"{objective.carbon_price_eur_per_t:g} EUR, and a point of accuracy in a thousand "
            f"requests is worth {objective.accuracy_value_eur:g} EUR."
        )
    if mean is None:
        return
    if not prices_gco2e:
        yield f"Accuracy is to be {mean.at_least:.4g} of the best variants', now at each moment."
        return
    promise = accuracy_promise(mean.at_least, mean.over_s, objective.accuracy_floor)
    worth = [
        f"{1e6 * price:.3g} gCO2e in a million requests of {name}"
        for name, price in sorted(prices_gco2e.items())[:_MAX_MODELS]
    ]
    yield (
        f"It keeps {promise}, of the best variants' accuracy, with the least carbon: now a point "
        f"is worth {', '.join(worth)}."
    )


def _unserved(who: str, promised: Score) -> Iterator[str]:
    for model, rps in promised.unserved_rps.items():
        if rps > 1e-6:
            yield f"{who} leaves {rps:.1f} req/s of {model} unserved."


def _proof(case: ExplainedCase) -> str:
    if case.gap is None:
        return "How far it is from the best is not proven."
    if case.gap <= _OPTIMAL_GAP:
        return "It is proven to be the best there is."
    if case.gap > 1.0:  # of an objective near 0 a ratio says nothing
        points = case.gap * max(abs(case.chosen.score.objective), TINY)
        return f"It is proven to be within {points:.2f} points of the best there is."
    return f"It is proven to be within {percent(case.gap, 2)} of the best there is."


def _against_base(case: ExplainedCase) -> Iterator[str]:
    if case.base is None:
        idle = not any(model.demand_rps for model in case.problem.models)
        yield "Without load BASE runs nothing." if idle else "BASE does not fit on this fleet."
    elif case.base.graph == case.chosen.graph:
        yield "It is BASE: every model's best variant on whole GPUs."
    else:
        yield f"Against BASE: {_versus(case, case.base)}."
        yield from _unserved("BASE", case.base.score)


def _against_others(case: ExplainedCase) -> Iterator[str]:
    """Yield the runner-up; it may be better than a heuristic's plan."""
    if case.runner_up is None:
        yield "Nothing else fits on this fleet."
        return
    yield f"The runner-up is {_verdict(case, case.runner_up)}."
    if _as_good(case, case.runner_up):
        rest = [each for each in case.others if not _as_good(case, each)]
        if rest:
            other = max(rest, key=lambda each: each.score.worth)
            yield f"The best that makes a difference is {_verdict(case, other)}."


def _as_good(case: ExplainedCase, other: Judged) -> bool:
    ours, theirs = case.chosen.score, other.score
    return theirs.shortage == ours.shortage and abs(_loses(case, other)) < _SAME_POINTS


def _loses(case: ExplainedCase, other: Judged) -> float:
    return case.chosen.score.objective - other.score.objective


def _verdict(case: ExplainedCase, other: Judged) -> str:
    what, loses = difference(case.chosen, other), _loses(case, other)
    if _as_good(case, other):
        return f"{what}, which is as good"
    if other.score.shortage > case.chosen.score.shortage:
        verdict = "serves less of the demand, or misses the accuracy floor"
    elif other.score.shortage < case.chosen.score.shortage:
        verdict = "serves more of the demand, or keeps the accuracy floor"
    else:
        verdict = f"{'loses' if loses > 0 else 'gains'} {abs(loses):.2f} points"
    return f"{what}, which {verdict}; against it the plan has {_versus(case, other)}"


def _turning_points(case: ExplainedCase) -> Iterator[str]:
    now = case.problem.objective.carbon_weight
    for turn in case.turning_points:
        yield (
            f"With a carbon weight {'above' if turn.above else 'below'} {turn.carbon_weight:.3g} "
            f"(now {now:g}), better would be {difference(case.chosen, turn.other)}."
        )


def _versus(case: ExplainedCase, other: Judged) -> str:
    ours, theirs = case.chosen.score, other.score
    if not _serve_alike(case.problem, ours, theirs):
        return "another served load, so that carbon and accuracy are not comparable"
    carbon = _relative(ours.carbon_gco2e_per_h, theirs.carbon_gco2e_per_h)
    points = round(_quality(case.problem, ours) - _quality(case.problem, theirs), 2) + 0.0
    return f"{carbon} and {points:+.2f} points of accuracy"


def _serve_alike(problem: Problem, ours: Score, theirs: Score) -> bool:
    return all(
        abs(ours.unserved_rps.get(model.name, 0.0) - theirs.unserved_rps.get(model.name, 0.0))
        <= _SAME_LOAD * model.demand_rps
        for model in problem.models
    )


def _relative(ours: float, theirs: float) -> str:
    if theirs <= 0:
        return "as little carbon" if ours <= 0 else "carbon where it has none"
    change = round(ours / theirs - 1, 3) + 0.0  # + 0.0: no minus zero
    return f"{change:+.1%} carbon".replace("%", " %")


def _quality(problem: Problem, promised: Score) -> float:
    """Return the mean accuracy relative to the best variants', weighted by demand, points."""
    total_rps = sum(model.demand_rps for model in problem.models)
    return 100.0 * sum(
        model.demand_rps / total_rps * promised.accuracy.get(model.name, 0.0) / model.best.accuracy
        for model in problem.models
        if total_rps > 0
    )
