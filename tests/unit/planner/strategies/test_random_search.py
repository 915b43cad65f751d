"""BLOVER: random search in the original space."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.kit.mig import maximal_layouts
from services.planner.core.problem.packing import pack
from services.planner.core.problem.score import score
from services.planner.core.strategies.annealing import PAPER
from services.planner.core.strategies.base import base
from services.planner.core.strategies.random_search import draws, random_search
from tests.support.examples import examples
from tests.support.planner import fleets

PROBLEM = fleets.problem(fleets.fleet((fleets.pool(), 3)), [fleets.model()])


@examples(0.4)
@given(st.integers(0, 1000))
def test_every_draw_fills_every_gpu(seed: int) -> None:
    """No fewer slices than the coarsest layouts have, and no more than fit."""
    fewest = min(map(len, maximal_layouts(PROBLEM.gpus[0].pool.type.geometry)))
    _, *drawn = draws(replace(PROBLEM, seed=seed), PAPER)
    assert len(drawn) >= PAPER.patience
    for met in drawn:
        segments = met.configuration.segments
        assert sum(segments.values()) >= fewest * len(PROBLEM.gpus)
        slices: dict[str, int] = {}
        for kind, count in segments.items():
            slices[kind.profile] = slices.get(kind.profile, 0) + count
        layouts = pack(PROBLEM.gpus[0].pool.type.geometry, frozenset(slices.items()))
        assert sum(count for _, count in layouts) <= len(PROBLEM.gpus)


def test_it_is_never_worse_than_where_it_starts_and_repeats_itself() -> None:
    start = score(PROBLEM, base(PROBLEM)).worth
    found = random_search(PROBLEM, PAPER)
    assert score(PROBLEM, found).worth >= start
    assert random_search(PROBLEM, PAPER).segments == found.segments


def test_nothing_fits_and_base_stays() -> None:
    """Without a kind that keeps the latency rule there is nothing to draw."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 2)), [fleets.model(slo_s=0.001, demand_rps=10.0)]
    )
    assert random_search(problem).segments == base(problem).segments
