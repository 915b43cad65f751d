"""Power of texts by their load: what programs count of a kind, and what a plan of it draws."""

import math
from dataclasses import replace

import pytest

from services.kit.config import Objective
from services.kit.profiles.core.language import LanguageProfile
from services.planner.core.model import Configuration, Model, Problem, SegmentKind, Variant
from services.planner.core.problem.latency_rule import admissible_rps
from services.planner.core.problem.power_curve import at_load, expected
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import exact
from tests.support.planner import fleets

PARKS = Objective(park_idle_gpus=True)


def posed(demand_rps: float, *, fills: bool) -> Problem:
    """Return the problem of one language model on four H100, by full batches."""
    profile = LanguageProfile.of(8.0).changed(prompt_tokens=200.0, answer_tokens=40.0)
    model = Model(
        "text", 30.0, 95.0, demand_rps, (Variant("8b", 1.0, profile),),
        slo_first_token_s=1.0, slo_token_s=0.05, fills=fills,
    )  # fmt: skip
    pool = fleets.pool("h100-80gb")
    gpus = fleets.fleet((pool, 4))
    return fleets.problem(gpus, [model], PARKS, batch_sizes=(1, 8, 64), max_processes=1)


def drawn_w(problem: Problem, configuration: Configuration) -> float:
    """Return the power that a plan predicts."""
    return expected(problem, configuration, score(problem, configuration)).power_w


def of_one_kind(problem: Problem, kind: SegmentKind) -> Configuration | None:
    """Return the fewest segments of a kind that serve all; None: it serves nothing in time."""
    (model,) = problem.models
    usable_rps = admissible_rps(problem.objective, model, kind)
    if usable_rps <= 0:
        return None
    count = math.ceil(model.demand_rps / usable_rps - 1e-9)
    return Configuration({kind: count}, {kind: model.demand_rps})


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("demand_rps", [2.0, 60.0, 200.0])
def test_of_one_kind_programs_count_what_is_drawn(demand_rps: float, fills: bool) -> None:
    """The program's power is that of the load's batches; by full batches it is less."""
    full = posed(demand_rps, fills=fills)
    problem = at_load(full)
    for before, kind in zip(full.catalog, problem.catalog, strict=True):
        assert kind == replace(before, energy_j=kind.energy_j)
        assert kind.energy_j >= before.energy_j * (1 - 1e-9)
        configuration = of_one_kind(problem, kind)
        load = configuration and configuration.load_rps[kind]
        if configuration and load and configuration.segments[kind] <= 4:
            counted_w = score(problem, configuration).power_w
            assert drawn_w(problem, configuration) == pytest.approx(counted_w)


def test_a_small_load_is_served_by_the_segment_that_draws_least() -> None:
    """By full batches a plan takes a whole GPU for two texts a second; a slice draws less."""
    full = posed(2.0, fills=False)
    problem = at_load(full)
    found_w = drawn_w(problem, exact(problem))
    every = [each for kind in problem.catalog if (each := of_one_kind(problem, kind))]
    alone_w = min(drawn_w(problem, each) for each in every)

    assert found_w <= alone_w * (1 + 1e-6)
    assert found_w < 0.9 * drawn_w(full, exact(full))


def test_the_energy_of_other_models_stays() -> None:
    """Analytic profiles have no tokens: their problem is returned as it is."""
    problem = fleets.problem(fleets.fleet((fleets.pool(), 1)), [fleets.model()])

    assert at_load(problem) is problem
