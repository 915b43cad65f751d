"""Plans with pipelines: every stage has the capacity and the time that the variant needs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Objective, Planner
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.decide import Snapshot, configuration_of, decide
from services.planner.core.model import (
    Configuration,
    Model,
    PipelineStage,
    Problem,
    SegmentKind,
    Variant,
)
from services.planner.core.placement.placement import place
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.strategies import COMPLETE, REGISTRY
from services.planner.core.strategies.exact import exact
from tests.support.examples import examples
from tests.support.planner import fleets

TRANSFER_S = 0.003
RHO = Objective().max_utilisation


def pipeline(name: str, accuracy: float, gmacs: Sequence[float]) -> Variant:
    """A variant in stages of so much arithmetic each."""
    return Variant(
        name,
        accuracy,
        AnalyticProfile(sum(gmacs)),
        pipeline=tuple(
            (
                PipelineStage(at, len(gmacs), work / sum(gmacs), TRANSFER_S),
                AnalyticProfile(work, memory_mib=1024),
            )
            for at, work in enumerate(gmacs)
        ),
    )


def posed(
    gmacs: Sequence[float], demand_rps: float, gpus: int, *, plain: bool, slo_s: float = 0.3
) -> Problem:
    """A model with a pipeline, and perhaps with a cheap variant in one piece."""
    model = fleets.model(gmacs=(0.7,), accuracies=(70.0,), demand_rps=demand_rps, slo_s=slo_s)
    cheap = model.variants if plain else ()
    model = replace(model, variants=(*cheap, pipeline("deep", 84.6, gmacs)))
    return fleets.problem(fleets.fleet((fleets.pool(), gpus)), [model], batch_sizes=(1, 4, 16))


def by_stage(configuration: Configuration) -> dict[int, dict[SegmentKind, float]]:
    """Return the pipeline's kinds and their loads, by stage."""
    found: dict[int, dict[SegmentKind, float]] = defaultdict(dict)
    for kind in configuration.segments:
        if kind.stage.of > 1:
            found[kind.stage.index][kind] = configuration.load_rps[kind]
    return found


@examples(0.12)
@given(
    st.lists(st.floats(1.0, 20.0), min_size=2, max_size=3),
    st.floats(5.0, 400.0),
    st.integers(1, 3),
    st.booleans(),
)
def test_what_a_pipeline_serves_goes_through_every_stage_in_time(
    gmacs: list[float], demand_rps: float, gpus: int, plain: bool
) -> None:
    problem = posed(gmacs, demand_rps, gpus, plain=plain)
    (model,) = problem.models

    found = exact(problem)

    stages = by_stage(found)
    loads = [sum(kinds.values()) for kinds in stages.values()]
    assert len(stages) in (0, len(gmacs)), "all stages or none"
    assert loads == pytest.approx([loads[0]] * len(loads) if loads else [], rel=1e-5)
    for kinds in stages.values():
        for kind, rps in kinds.items():
            assert rps <= RHO * kind.throughput_rps * found.segments[kind] * (1 + 1e-6)
    slowest_s = [max(kind.latency_s for kind in kinds) + TRANSFER_S for kinds in stages.values()]
    assert sum(slowest_s) <= problem.objective.latency_share * model.slo_latency_s + 1e-9
    answered = sum(rps for kind, rps in found.load_rps.items() if not kind.stage.index)
    judged = score(problem, found)
    assert answered + judged.unserved_rps[model.name] == pytest.approx(demand_rps, rel=1e-5)


def test_the_plan_is_never_worse_than_one_without_the_pipeline() -> None:
    for demand_rps in (20.0, 200.0, 2000.0):
        problem = posed((8.0, 12.0), demand_rps, 2, plain=True)
        without = exact(
            replace(problem, catalog=tuple(k for k in problem.catalog if k.stage.of == 1))
        )

        assert score(problem, exact(problem)).worth >= score(problem, without).worth


def test_a_network_too_large_for_any_gpu_is_served_in_stages() -> None:
    """Each stage takes most of a GPU's memory, so that both together fit on none."""
    half = AnalyticProfile(10.0, memory_mib=30_000)
    stages = tuple((PipelineStage(at, 2, 0.5, TRANSFER_S), half) for at in range(2))
    variant = Variant("deep", 84.6, AnalyticProfile(20.0, memory_mib=60_000), pipeline=stages)
    model = Model("vision", 0.3, 95.0, 20.0, (variant,))
    problem = fleets.problem(fleets.fleet((fleets.pool(), 2)), [model])

    found = exact(problem)
    numbers = count()
    segments = place(problem, found, lambda: f"s{next(numbers)}")

    assert score(problem, found).unserved_rps["vision"] == 0
    assert {each.kind.stage.index for each in segments} == {0, 1}
    assert len({each.gpu_uuid for each in segments}) == 2
    shares: dict[object, float] = defaultdict(float)
    for each in segments:
        shares[each.kind.queue] += each.share
    assert shares == {("vision", "", 0): 1.0, ("vision", "deep", 1): 1.0}
    assert configuration_of(segments, problem).load_rps == pytest.approx(found.load_rps)


def test_loads_are_shared_out_over_the_stages_of_what_runs() -> None:
    """The horizon does so, which keeps only what runs and computes the loads again."""
    problem = posed((8.0, 12.0), 60.0, 2, plain=True)
    found = exact(problem)

    again = with_load(prices(problem), found.segments)

    assert score(problem, again).worth == pytest.approx(score(problem, found).worth, rel=1e-6)


def test_a_stage_without_segments_serves_nothing() -> None:
    problem = posed((8.0, 12.0), 60.0, 2, plain=False)
    first = {kind: n for kind, n in exact(problem).segments.items() if not kind.stage.index}

    judged = score(problem, with_load(prices(problem), first))

    assert judged.unserved_rps["vision"] == pytest.approx(60.0)


@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - COMPLETE))
def test_other_strategies_leave_pipelines_out(name: str) -> None:
    found = REGISTRY[name](posed((8.0, 12.0), 60.0, 2, plain=True))

    assert {kind.variant for kind in found.segments} == {"v0"}


def test_a_plan_says_why_a_model_of_pipelines_alone_is_not_served() -> None:
    problem = posed((8.0, 12.0), 60.0, 1, plain=False)
    snapshot = Snapshot(problem.gpus, problem.models, (), {}, problem.objective, strategy="base")

    degraded = decide(snapshot, Planner(strategy="base"), iter("abc").__next__).degraded

    assert (
        "vision: every variant is a pipeline or on several GPUs, and base plans neither" in degraded
    )
