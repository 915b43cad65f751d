"""The claims of an explanation hold: each is checked against the problem it explains."""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.records import Binding, Explanation
from services.kit.config import Goals, Objective
from services.planner.core.decide import configuration_of
from services.planner.core.explain.alternatives import alternatives, break_even_points, graph, judge
from services.planner.core.explain.explain import DecidedPlan, explain, outline
from services.planner.core.model import Configuration, Problem, Segment
from services.planner.core.placement.placement import place
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.strategies import BY_OBJECTIVE, REGISTRY
from tests.support.examples import examples
from tests.support.planner.fleets import fleet, model, pool, problem

exact = REGISTRY["exact"]


def explain_with(problem: Problem, strategy: str = "exact") -> Explanation:
    return explained(problem, REGISTRY[strategy](problem))


def explained(problem: Problem, chosen: Configuration) -> Explanation:
    return explain(DecidedPlan(3, problem, chosen, 0.5))


def bound(explanation: Explanation) -> Mapping[tuple[str, str], Binding]:
    return {(each.constraint, each.subject): each for each in explanation.bindings}


def vision(
    demand_rps: float = 300.0, gpus: int = 2, *, slo_s: float = 0.15, **objective: object
) -> Problem:
    aim = Objective.model_validate({"park_idle_gpus": True, **objective})
    return problem(fleet((pool(), gpus)), [model(demand_rps=demand_rps, slo_s=slo_s)], aim)


# ---- the outline -------------------------------------------------------------------------------


def test_an_outline_says_what_the_explanation_says_as_far_as_that_needs_no_solve() -> None:
    posed = vision()
    decided = DecidedPlan(3, posed, exact(posed), 0.5)
    whole, brief = explain(decided), outline(decided)

    assert (brief.plan, brief.conditions) == (whole.plan, whole.conditions)
    assert set(brief.bindings) <= set(whole.bindings)
    assert brief.unchanged == whole.unchanged is None  # nothing runs
    assert (brief.runner_up, brief.base, brief.sentences) == (None, None, ())


def test_what_runs_is_judged_under_the_circumstances_of_the_plan() -> None:
    """At a hundred times the load it leaves what it cannot take."""
    small, large = vision(30.0), vision(3000.0)
    ran = placed(small, exact(small))
    found = [
        outline(DecidedPlan(0, replace(each, running=ran), exact(each), 0.5))
        for each in (small, large)
    ]

    assert found[0].unchanged == found[0].plan
    assert found[1].unchanged is not None
    assert sum(found[1].unchanged.unserved_rps.values()) > sum(found[1].plan.unserved_rps.values())


# ---- the runner-up and BASE --------------------------------------------------------------------


@examples(0.16)
@given(st.floats(20, 2000), st.floats(0, 1), st.booleans())
def test_no_alternative_beats_the_optimum_and_all_differ_from_it(
    demand_rps: float, carbon_weight: float, park: bool
) -> None:
    posed = vision(demand_rps, carbon_weight=carbon_weight, park_idle_gpus=park)
    chosen = exact(posed)
    worth = score(posed, chosen).worth
    found = list(alternatives(posed, chosen, exact))

    assert found
    assert all(graph(each.configuration.segments) != graph(chosen.segments) for each in found)
    for each in found:
        *shortage, objective = each.score.worth[:5]
        *least, best = worth[:5]
        margin = max(1e-4 * abs(best), 1e-12)  # a weight of 1e-44 leaves nothing else to compare
        assert shortage < least or (shortage == least and objective <= best + margin)


@examples(0.16)
@given(st.floats(50, 900), st.floats(0.1, 0.9))
def test_the_runner_up_is_the_best_of_all_that_could_be(
    demand_rps: float, carbon_weight: float
) -> None:
    """Every way to put two variants on three T4s, but for those with a GPU to spare."""
    task = model(gmacs=(0.7, 5.7), accuracies=(78.4, 82.0), demand_rps=demand_rps, slo_s=0.5)
    aim = Objective(carbon_weight=carbon_weight, park_idle_gpus=True)
    posed = problem(
        fleet((pool("t4"), 3)), [task], aim, batch_sizes=(8,), max_processes=1, time_limit_s=5.0
    )
    known, kinds = prices(posed), posed.catalog
    chosen = exact(posed)
    runner_up = explained(posed, chosen).runner_up
    assert runner_up is not None
    rest = [
        judged.score
        for counts in product(range(4), repeat=len(kinds))
        if 0 < sum(counts) <= 3
        and (judged := judge(known, with_load(known, dict(zip(kinds, counts, strict=True)))))
        and not chosen.segments.items() <= judged.configuration.segments.items()
        and any(
            judged.configuration.segments.get(kind, 0) < count
            for kind, count in chosen.segments.items()
        )
    ]
    best = max(rest, key=lambda each: each.worth)

    assert sum(runner_up.outlook.unserved_rps.values()) <= sum(best.unserved_rps.values()) + 1e-6
    if sum(runner_up.outlook.unserved_rps.values()) == pytest.approx(
        sum(best.unserved_rps.values())
    ):
        assert runner_up.outlook.objective >= best.objective - 1e-6


def test_the_four_edges_that_take_most_load_are_left_out_in_turn() -> None:
    """The turning points' smaller number of solves, on each side, is another limit."""
    posed = vision(gpus=5)
    kinds = list({each.variant + each.profile: each for each in posed.catalog}.values())[:5]
    chosen = Configuration(dict.fromkeys(kinds, 1), {kind: n + 1.0 for n, kind in enumerate(kinds)})
    without = []

    def solve(changed: Problem) -> Configuration:
        left = graph(dict.fromkeys(changed.catalog, 1))
        without.append([edge for edge in chosen_graph if edge not in left])
        return chosen

    chosen_graph = graph(chosen.segments)
    for _ in alternatives(posed, chosen, solve):
        pass

    assert without == [[edge] for edge in list(chosen_graph)[:0:-1]]


def test_what_runs_is_among_the_alternatives() -> None:
    posed = vision(carbon_weight=0.1)
    cheap = exact(vision(carbon_weight=1.0))
    running = replace(posed, running=placed(posed, cheap))
    found = alternatives(running, exact(running), exact)

    assert graph(cheap.segments) in [each.graph for each in found]


def placed(posed: Problem, chosen: Configuration) -> tuple[Segment, ...]:
    numbers = iter(range(1000))
    return place(posed, chosen, lambda: f"s-{next(numbers)}")


def test_the_runner_up_says_what_it_is_and_what_it_loses() -> None:
    explanation = explain_with(vision(carbon_weight=0.1))
    assert explanation.runner_up is not None
    loss = explanation.plan.objective - explanation.runner_up.outlook.objective

    assert explanation.runner_up.description == "v2 on 4g.20gb instead of v2 on 3g.20gb"
    assert explanation.runner_up.loses == pytest.approx(loss)
    assert any(
        f"The runner-up is {explanation.runner_up.description}, which loses {loss:.2f} points"
        in sentence
        for sentence in explanation.sentences
    )


def test_an_explanation_says_what_a_heuristic_missed() -> None:
    """CO2OPT never looks at accuracy: with weight on accuracy the optimum gains, and is named."""
    explanation = explain_with(vision(carbon_weight=0.1), "co2opt")
    assert explanation.runner_up is not None

    assert explanation.runner_up.loses < 0
    assert any("which gains" in each for each in explanation.sentences)


def test_what_a_heuristic_leaves_unproven_is_proven_by_another_solve() -> None:
    posed = vision(carbon_weight=0.1)
    heuristic, best = explain_with(posed, "co2opt"), explain_with(posed)
    missed = best.plan.objective - heuristic.plan.objective

    assert heuristic.gap == pytest.approx(missed / abs(heuristic.plan.objective), rel=1e-3)
    assert best.gap == pytest.approx(0.0, abs=1e-6)
    assert "It is proven to be the best there is." in best.sentences


def test_base_stands_beside_the_plan_with_carbon_and_accuracy() -> None:
    explanation = explain_with(vision(carbon_weight=0.5))
    assert explanation.base is not None
    saved = explanation.plan.carbon_gco2e_per_h / explanation.base.outlook.carbon_gco2e_per_h - 1
    lost = 100 * (explanation.plan.accuracy["vision"] / 84.6 - 1)

    assert explanation.base.outlook.accuracy == {"vision": pytest.approx(84.6)}
    assert any(
        f"Against BASE: {100 * saved:+.1f} % carbon and {lost:+.2f} points of accuracy." in each
        for each in explanation.sentences
    )


def test_a_plan_that_is_base_says_so() -> None:
    assert any("It is BASE" in each for each in explain_with(vision(), "base").sentences)


# ---- bindings ----------------------------------------------------------------------------------


def test_without_load_base_runs_nothing() -> None:
    idle = vision(demand_rps=0.0)

    assert "Without load BASE runs nothing." in explained(idle, exact(idle)).sentences


def test_overload_binds_fleet_and_capacity_and_names_what_is_not_served() -> None:
    explanation = explain_with(vision(200_000.0, gpus=1))
    bindings = bound(explanation)

    assert bindings["fleet", "a100-40gb in US-CAL"].used > 0.8
    assert bindings["capacity", "vision"].used == pytest.approx(1.0)
    assert any("req/s of vision unserved" in each for each in explanation.sentences)


def test_little_demand_binds_neither_fleet_nor_capacity() -> None:
    assert not {"fleet", "capacity"} & {name for name, _ in bound(explain_with(vision(10.0)))}


def test_the_floor_binds_where_carbon_alone_matters() -> None:
    kept = bound(explain_with(vision(carbon_weight=1.0, accuracy_floor=0.97)))
    free = bound(explain_with(vision(carbon_weight=1.0)))

    assert kept["accuracy_floor", "vision"].used == pytest.approx(1.0, abs=0.01)
    assert "is at the floor, 82.06 (97.0 % of v3's)" in kept["accuracy_floor", "vision"].sentence
    assert ("accuracy_floor", "vision") not in free


def test_the_latency_rule_binds_until_the_slo_is_long_enough() -> None:
    """Three models share a GPU, so that none gets a slice on which large batches are quick."""

    def bindings(slo_s: float) -> Mapping[tuple[str, str], Binding]:
        tasks = [model(f"m{number}", slo_s=slo_s, demand_rps=150.0) for number in range(3)]
        aim = Objective(carbon_weight=0.1, park_idle_gpus=True, latency_rule="batch")
        return bound(explain_with(problem(fleet((pool(), 2)), tasks, aim)))

    tight = bindings(0.15)["latency_rule", "m0"]

    assert "ms per batch; 0.5 x SLO allows 75 ms" in tight.sentence
    assert 0.5 < tight.used <= 1
    assert not any(name == "latency_rule" for name, _ in bindings(30.0))


@pytest.mark.parametrize(("gap", "binds"), [(0.05, True), (0.0, False)])
def test_time_binds_where_the_gap_is_open(gap: float, binds: bool) -> None:
    posed = vision()
    explanation = explained(posed, replace(exact(posed), gap=gap))
    found = bound(explanation).get(("time_limit", ""))

    assert (found is not None) is binds
    assert explanation.gap == gap
    if found is not None:
        assert "within 5.00 %" in found.sentence


def test_the_price_of_reconfiguring_binds_where_it_alone_keeps_the_better_plan_away() -> None:
    cheap = vision(carbon_weight=1.0)
    running = placed(cheap, exact(cheap))
    held, free = (
        replace(vision(carbon_weight=0.1, switch_price=price, layout_price=0.0), running=running)
        for price in (1000.0, 0.0)
    )
    stays = configuration_of(running, held)
    found = bound(explained(held, stays))["reconfiguration_price", ""]
    gain = score(free, exact(free)).objective - score(free, stays).objective

    assert 0 < found.used < 1
    assert f"would gain {gain:.2f} points" in found.sentence
    assert ("reconfiguration_price", "") not in bound(explained(free, stays))


@examples(0.08)
@given(
    st.sampled_from(list(REGISTRY)),
    st.floats(20, 2000),
    st.floats(0, 1),
    st.floats(0, 30),
    st.sampled_from(list(REGISTRY)),
)
def test_only_like_is_compared_with_like(
    strategy: str, demand_rps: float, carbon_weight: float, price: float, ran: str
) -> None:
    """Whatever plan is explained: prices keep what they outweigh, carbon is of the same load."""
    posed = vision(demand_rps, carbon_weight=carbon_weight, switch_price=price)
    posed = replace(posed, running=placed(posed, REGISTRY[ran](posed)))
    chosen = REGISTRY[strategy](posed)
    found = explain(DecidedPlan(3, posed, chosen, 0.5, strategy=strategy))

    kept = bound(found).get(("reconfiguration_price", ""))
    if kept is not None:
        gain, cost = map(float, re.findall(r"(?:gain|costs) ([\d.e+-]+\d)", kept.sentence))
        assert gain <= cost
    ours = found.plan.unserved_rps
    for other, says in ((found.base, "Against BASE"), (found.runner_up, "The runner-up is")):
        said = [each for each in found.sentences if each.startswith(says) and "plan has" in each]
        if other is not None and other.outlook.unserved_rps != pytest.approx(ours, abs=1.0):
            assert not any("% carbon" in each for each in said)
    own_rule = any("by a rule of its own" in each for each in found.sentences)
    assert own_rule == (strategy not in BY_OBJECTIVE)
    assert not any(
        float(each) > 100
        for text in found.sentences
        for each in re.findall(r"within (\S+) %", text)
    )


@examples(0.16)
@given(st.floats(10, 5000), st.floats(0, 1), st.floats(0, 1))
def test_bindings_come_most_binding_first_and_never_exceed_their_limit(
    demand_rps: float, carbon_weight: float, floor: float
) -> None:
    posed = vision(demand_rps, carbon_weight=carbon_weight, accuracy_floor=floor)
    used = [each.used for each in explain_with(posed).bindings]

    assert used == sorted(used, reverse=True)
    assert all(0 <= each <= 1 for each in used)


# ---- turning points ----------------------------------------------------------------------------


@examples(0.16)
@given(
    st.floats(100, 1500),
    st.floats(0.05, 0.95),
    st.sampled_from(["exact", "annealing", "base", "co2opt"]),
)
def test_at_a_turning_point_the_other_one_becomes_better(
    demand_rps: float, carbon_weight: float, strategy: str
) -> None:
    """Whatever decided: also where the plan is not the best even now."""
    posed = vision(demand_rps, carbon_weight=carbon_weight)
    known, chosen = prices(posed), REGISTRY[strategy](posed)
    mine = judge(known, chosen)
    assert mine is not None
    others = list(alternatives(posed, chosen, exact))

    for turn in break_even_points(posed, mine, others, exact):
        away = 1 if turn.above else -1
        assert away * (turn.carbon_weight - carbon_weight) >= 0
        assert advantage(posed, turn.carbon_weight, turn.other.configuration, chosen) == (
            pytest.approx(0.0, abs=1e-6)
        )
        beyond = turn.carbon_weight + away * 0.01
        if 0 <= beyond <= 1:
            assert advantage(posed, beyond, turn.other.configuration, chosen) > 0


@examples(0.16)
@given(st.floats(100, 1500), st.floats(0.05, 0.95))
def test_on_the_two_sides_of_a_turning_point_dry_runs_differ_as_said(
    demand_rps: float, carbon_weight: float
) -> None:
    """Up to it the plan stays the best there is; beyond it another one is."""
    posed = vision(demand_rps, carbon_weight=carbon_weight)
    chosen = exact(posed)
    mine = judge(prices(posed), chosen)
    assert mine is not None

    for turn in break_even_points(posed, mine, list(alternatives(posed, chosen, exact)), exact):
        step = min(0.01, abs(turn.carbon_weight - carbon_weight) / 2)
        before, beyond = (
            turn.carbon_weight + (side if turn.above else -side) * step for side in (-1, 1)
        )
        if step < 1e-4 or not 0 <= beyond <= 1:
            continue
        stays = exact(with_weight(posed, before))
        changes = exact(with_weight(posed, beyond))
        assert advantage(posed, before, stays, chosen) == pytest.approx(0.0, abs=1e-5)
        assert graph(changes.segments) != graph(chosen.segments)
        assert advantage(posed, beyond, changes, chosen) > 0


def with_weight(posed: Problem, carbon_weight: float) -> Problem:
    objective = posed.objective.model_copy(update={"carbon_weight": carbon_weight})
    return replace(posed, objective=objective)


@examples(0.16)
@given(
    st.sampled_from(sorted(REGISTRY)),
    st.sampled_from([{}, {"clover": 0.0, "fewest_gpus": 1.0}, {"clover": 0.0, "infadapter": 1.0}]),
    st.floats(50, 60_000),
    st.floats(0, 1),
)
def test_every_strategy_is_explained_by_the_deployments_objective(
    strategy: str, goals: Mapping[str, float], demand_rps: float, carbon_weight: float
) -> None:
    """No plan is proven to be the best while the runner-up gains, or serves more."""
    posed = vision(demand_rps, carbon_weight=carbon_weight, goals=goals)
    explanation = explain_with(posed, strategy)
    gained = [
        each
        for each in explanation.sentences
        if "which gains" in each or "which serves more" in each
    ]

    if "It is proven to be the best there is." in explanation.sentences:
        assert not gained
    if explanation.gap is not None and explanation.runner_up is not None:
        worse = explanation.runner_up.outlook
        if sum(worse.unserved_rps.values()) == sum(explanation.plan.unserved_rps.values()):
            limit = max(explanation.gap, 1e-6) * abs(explanation.plan.objective) + 1e-6
            assert -explanation.runner_up.loses <= limit


def advantage(
    posed: Problem, carbon_weight: float, other: Configuration, chosen: Configuration
) -> float:
    there = with_weight(posed, carbon_weight)
    return score(there, other).objective - score(there, chosen).objective


def test_without_clovers_goal_there_is_no_carbon_weight_to_turn() -> None:
    posed = vision(goals=Goals(clover=0.0, fewest_gpus=1.0).model_dump())
    chosen = judge(prices(posed), exact(posed))
    assert chosen is not None

    assert list(break_even_points(posed, chosen, [chosen], exact)) == []


# ---- what cannot be ----------------------------------------------------------------------------


def test_a_model_that_nothing_can_serve_is_explained_all_the_same() -> None:
    posed = vision(slo_s=1e-6)
    explanation = explain_with(posed)

    assert explanation.plan.unserved_rps["vision"] == pytest.approx(300.0)
    assert explanation.sentences
