"""Corrections of profiles that measurements imply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.clover.live import World
from services.planner.core.model import Configuration, SegmentKind
from services.planner.core.online_search.measurement import MIN_BATCHES, Observed, ratios
from services.planner.core.online_search.profile_corrections import Beliefs, Cell
from tests.support.examples import examples
from tests.support.planner import fleets

GPU = "a100-40gb"
PROBLEM = fleets.problem(fleets.fleet((fleets.pool(), 4)), [fleets.model()])


def cell(variant: str, profile: str) -> Cell:
    return Cell("vision", variant, GPU, profile)


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_a_measured_cell_is_corrected_by_what_was_measured(time: float, energy: float) -> None:
    """Up to the shrinkage that noise deserves: a fortieth of the logarithm at most."""
    found = Beliefs().measured(cell("v0", "1g.5gb"), time, energy)
    correction = found.corrections([cell("v0", "1g.5gb")])[cell("v0", "1g.5gb")]
    assert correction.time == pytest.approx(time, rel=0.02)
    assert correction.energy == pytest.approx(energy, rel=0.02)
    assert correction.doubt < 0.03


def test_the_nearer_a_cell_the_more_it_learns() -> None:
    """The same slice, then the same variant, then neither; doubt grows in the same order."""
    beliefs = Beliefs().measured(cell("v0", "1g.5gb"), 1.3, 1.3)
    cells = [cell("v0", "1g.5gb"), cell("v1", "1g.5gb"), cell("v0", "3g.20gb"), cell("v1", "7g")]
    found = [beliefs.corrections(cells)[each] for each in cells]
    assert [c.time for c in found] == sorted((c.time for c in found), reverse=True)
    assert [c.doubt for c in found] == sorted(c.doubt for c in found)
    assert found[-1].time > 1.0


def test_nothing_measured_nothing_corrected() -> None:
    found = Beliefs().corrections([cell("v0", "1g.5gb")])[cell("v0", "1g.5gb")]
    assert (found.time, found.energy) == (1.0, 1.0)
    assert found.doubt > 0.1


def test_repeated_measurements_leave_less_doubt() -> None:
    one = Beliefs().measured(cell("v0", "1g.5gb"), 1.2, 1.0)
    two = one.measured(cell("v0", "1g.5gb"), 1.2, 1.0)
    mine = cell("v0", "1g.5gb")
    assert two.corrections([mine])[mine].doubt < one.corrections([mine])[mine].doubt


@examples(0.2)
@given(
    kind=st.sampled_from(PROBLEM.catalog),
    count=st.integers(1, 2),
    utilisation=st.floats(0.02, 0.95),
    time=st.floats(0.6, 1.8),
    energy=st.floats(0.6, 1.8),
)
def test_partial_batches_and_idle_processes_do_not_look_like_a_wrong_profile(
    kind: SegmentKind, count: int, utilisation: float, time: float, energy: float
) -> None:
    """Whatever the load, what a segment meters gives back how wrong its profile is."""
    load_rps = utilisation * count * kind.throughput_rps / time
    world = World.behind(PROBLEM, lambda _variant, _slice: (time, energy))
    measurement = world.measure(Configuration({kind: count}, {kind: load_rps}))
    found = ratios(PROBLEM.models, kind, measurement.observed[kind], measurement.span_s)
    assert found is not None
    assert found == pytest.approx((time, energy), rel=0.4 if kind.processes > 1 else 0.02)


def test_a_few_batches_say_nothing() -> None:
    kind = PROBLEM.catalog[0]
    seen = Observed(1, MIN_BATCHES - 1, MIN_BATCHES - 1, 1.0, 1.0)
    assert ratios(PROBLEM.models, kind, seen, 60.0) is None
