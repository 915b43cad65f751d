"""Parts of a plan's saving add up to it, and each is of the lever that it names."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Objective
from services.kit.profiles.core.language import LanguageProfile
from services.kit.units import S_PER_H
from services.planner.core.accounting.levers import LEVERS, saved_by_lever
from services.planner.core.model import Configuration, Gpu, Model, Problem, Variant
from services.planner.core.problem.catalog import whole
from services.planner.core.problem.power_curve import expected
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from tests.support.examples import examples
from tests.support.planner import fleets

TWO_ZONES = fleets.fleet(
    (fleets.pool(zone="A", intensity=100.0), 2), (fleets.pool(zone="B", intensity=400.0), 2)
)
ONE_ZONE = fleets.fleet((fleets.pool(), 3))
"""Fleets of 40 GB A100s."""
H100 = fleets.pool("h100-80gb")


def saved(problem: Problem, configuration: Configuration) -> dict[str, float]:
    return saved_by_lever(problem, configuration, score(problem, configuration))


@pytest.mark.parametrize("park", [False, True])
@pytest.mark.parametrize("gpus", [ONE_ZONE, TWO_ZONES])
@pytest.mark.parametrize("clocks", [(1.0,), (1.0, 0.7)])
def test_parts_add_up_to_the_difference_from_base(
    gpus: tuple[Gpu, ...], clocks: tuple[float, ...], park: bool
) -> None:
    """BASE's emissions by its own score, less the plan's, are the sum of the parts."""
    objective = Objective(park_idle_gpus=park, carbon_weight=0.2)
    problem = fleets.problem(gpus, [fleets.model(demand_rps=120.0)], objective, clock_ratios=clocks)
    base, plan = REGISTRY["base"](problem), REGISTRY["exact"](problem)
    found = saved(problem, plan)
    assert tuple(found) == LEVERS
    everything = score(problem, base).carbon_gco2e_per_h
    if len(problem.pools) > 1:  # BASE fills zone by zone, the reference loads all alike
        even = {kind: 120.0 / len(base.load_rps) for kind in base.load_rps}
        everything = score(problem, replace(base, load_rps=even)).carbon_gco2e_per_h
    difference = everything - score(problem, plan).carbon_gco2e_per_h
    assert sum(found.values()) == pytest.approx(difference, rel=0.01)
    assert bool(found["clocks"]) == any(kind.clock_mhz for kind in plan.segments)
    if len(problem.pools) == 1:
        assert found["place"] == pytest.approx(0.0, abs=1e-6)


def test_base_saves_nothing_against_itself() -> None:
    """On GPUs of one zone every part of BASE's own saving is 0."""
    problem = fleets.problem(ONE_ZONE, [fleets.model(demand_rps=120.0)])
    found = saved(problem, REGISTRY["base"](problem))
    assert found == pytest.approx(dict.fromkeys(LEVERS, 0.0), abs=1e-6)


def test_a_cleaner_zone_and_an_empty_gpu_have_their_own_parts() -> None:
    """The best variant on whole GPUs of the clean zone: nothing is owed to variants or slices."""
    problem = fleets.problem(TWO_ZONES, [fleets.model(demand_rps=60.0)])
    base = REGISTRY["base"](problem)
    clean = {kind: n for kind, n in base.segments.items() if kind.pool.zone == "A"}
    (kind,) = clean
    found = saved(problem, Configuration(clean, {kind: 60.0}))
    assert found["variant"] == found["slice"] == found["clocks"] == 0.0
    energy_j = 60.0 * kind.energy_j * S_PER_H
    expected = (250.0 - 100.0) * energy_j * 1.5 / 3.6e6
    assert found["place"] == pytest.approx(expected)
    use_w = kind.pool.type.use_power_w
    assert found["consolidation"] == pytest.approx(2 * use_w * 1.5 * 400.0 / 1000.0)


@examples(0.12)
@given(
    parameters_b=st.sampled_from([1.5, 8.0, 14.0]),
    answer_tokens=st.sampled_from([40.0, 300.0]),
    load=st.floats(0.01, 0.6),
    gpus=st.integers(1, 6),
    clocks=st.sampled_from([(1.0,), (0.6, 1.0)]),
    fills=st.booleans(),
    small=st.booleans(),
)
def test_parts_add_up_for_language_models(  # noqa: PLR0917  # what plans depend on
    parameters_b: float,
    answer_tokens: float,
    load: float,
    gpus: int,
    clocks: tuple[float, ...],
    fills: bool,
    small: bool,
) -> None:
    """BASE is evenly loaded, and batches are as large as the load makes them, in both."""
    profile = LanguageProfile.of(parameters_b, answer_tokens=answer_tokens)
    variants = [Variant("large", 0.8, profile)]
    if small:
        variants.append(Variant("small", 0.7, profile.changed(parameters_b=parameters_b / 2)))
    whole_gpu = H100.type.shape(whole(H100))
    most = profile.batch(whole_gpu, 64, 1)
    assert most is not None
    demand_rps = load * gpus * 64 / most.latency_s
    model = Model("text", 60.0, 95.0, demand_rps, tuple(variants), fills=fills)
    objective = Objective(park_idle_gpus=True)
    problem = fleets.problem(
        fleets.fleet((H100, gpus)), [model], objective,
        batch_sizes=(1, 8, 64), max_processes=2, clock_ratios=clocks,
    )  # fmt: skip
    base, plan = REGISTRY["base"](problem), REGISTRY["exact"](problem)

    found = expected(problem, plan, score(problem, plan))
    of_base = expected(problem, base, score(problem, base), fills=False)

    assert of_base.unserved_rps["text"] == pytest.approx(0.0)
    saving = of_base.carbon_gco2e_per_h - found.carbon_gco2e_per_h
    parts = saved_by_lever(problem, plan, found)
    assert sum(parts.values()) == pytest.approx(saving, rel=0.01, abs=1e-3)
    assert bool(parts["clocks"]) == any(kind.clock_mhz for kind in plan.segments)
    assert parts["place"] == pytest.approx(0.0, abs=1e-6)
