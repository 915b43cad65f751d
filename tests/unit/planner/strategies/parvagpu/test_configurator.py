"""ParvaGPU's Segment Configurator: triplets, demand matching, small segments, places."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Objective
from services.kit.hardware import gpu_types
from services.planner.core.model import SegmentKind
from services.planner.core.strategies.parvagpu.configurator import (
    Triplet,
    match,
    sizes,
    split,
    triplets,
)
from tests.support.planner import fleets

A100 = fleets.pool("a100-80gb")
SIZES = sizes(A100.type.geometry)
SLICES = {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb", 7: "7g.80gb"}
MOST = 1_000_000


def triplet(gpcs: int, rps: float) -> Triplet:
    kind = SegmentKind("m", "v", A100, SLICES[gpcs], 1, 1, 0.01, rps, 1.0, 90.0)
    return Triplet(kind, SIZES[kind.profile], rps)


choices = st.dictionaries(
    st.sampled_from(sorted(SLICES)), st.floats(1.0, 1e4), min_size=1, max_size=5
).map(lambda found: [triplet(gpcs, found[gpcs]) for gpcs in sorted(found)])


def total(segments: Sequence[Triplet]) -> float:
    return sum(each.usable_rps for each in segments)


@given(choices, st.floats(0.1, 1e5))
def test_matched_segments_meet_the_demand_and_none_is_superfluous(
    choice: list[Triplet], demand_rps: float
) -> None:
    found = list(match(demand_rps, choice, MOST))
    assert total(found) >= demand_rps * (1 - 1e-6)
    assert total(found) - min(each.usable_rps for each in found) < demand_rps
    best = max(each.rps_per_gpc for each in choice)
    assert all(each.rps_per_gpc == best for each in found[:-1])


@given(choices, st.integers(1, 20))
def test_a_demand_that_optimal_segments_fill_exactly_gets_no_last_segment(
    choice: list[Triplet], number: int
) -> None:
    """Algorithm 1, line 20, as printed, adds one for a demand of 0."""
    best = max(choice, key=lambda each: each.rps_per_gpc)
    assert list(match(number * best.usable_rps, choice, MOST)) == [best] * number


def test_no_more_segments_are_requested_than_a_pool_holds() -> None:
    """Ten times the load, or a typing error in it, costs no memory."""
    assert len(list(match(1e12, [triplet(1, 1.0)], most=70))) == 70


@given(choices, st.floats(0.1, 1e5))
def test_small_segments_replace_any_throughput(choice: list[Triplet], demand_rps: float) -> None:
    """Of one or two GPCs only, enough, and none superfluous; none where the model has none."""
    found = list(split(demand_rps, choice))
    small = [each for each in choice if each.size.gpcs <= 2]
    assert bool(found) == bool(small)
    if small:
        assert {each.size.gpcs for each in found} <= {1, 2}
        assert total(found) >= demand_rps * (1 - 1e-6)
        assert total(found) - found[-1].usable_rps < demand_rps


def test_two_gpcs_come_first_only_where_they_serve_more_per_gpc() -> None:
    """10 req/s: two segments of 2 GPCs and one of 1; or four of 1 where those serve as much."""
    better, equal = [triplet(1, 2.0), triplet(2, 4.5)], [triplet(1, 2.5), triplet(2, 5.0)]
    assert [each.size.gpcs for each in split(10.0, better)] == [2, 2, 1]
    assert [each.size.gpcs for each in split(10.0, equal)] == [1, 1, 1, 1]


def test_triplets_are_the_fastest_segments_that_keep_the_latency_rule() -> None:
    model = fleets.model(gmacs=[5.7], accuracies=[77])
    objective = Objective(latency_rule="batch")
    problem = fleets.problem(fleets.fleet((A100, 1)), [model], objective)
    found = triplets(problem)[A100]["vision"]
    assert [each.size.gpcs for each in found] == sorted(SLICES)
    for each in found:
        same = [kind for kind in problem.catalog if kind.profile == each.kind.profile]
        assert each.kind.throughput_rps == max(kind.throughput_rps for kind in same)
        assert each.kind.latency_s <= 0.5 * problem.models[0].slo_latency_s
        assert each.usable_rps == pytest.approx(0.7 * each.kind.throughput_rps)


def test_of_equal_gpcs_the_slice_with_least_memory_is_taken() -> None:
    """1g.20gb displaces two segments on most places, and is for models that need its memory."""
    problem = fleets.problem(fleets.fleet((A100, 1)), [fleets.model()])
    assert {kind.profile for kind in problem.catalog} >= {"1g.10gb", "1g.20gb"}
    assert triplets(problem)[A100]["vision"][0].kind.profile == "1g.10gb"


def test_each_pool_runs_the_most_accurate_variant_that_is_in_time_there() -> None:
    """The H100 keeps the latency that only the small network keeps on a T4."""
    h100, t4 = fleets.pool("h100-80gb"), fleets.pool("t4")
    problem = fleets.problem(fleets.fleet((h100, 1), (t4, 1)), [fleets.model(slo_s=0.15)])
    found = triplets(problem)
    best = {pool: {each.kind.accuracy for each in found[pool]["vision"]} for pool in (h100, t4)}
    for pool, accuracies in best.items():
        kinds = [kind for kind in problem.catalog if kind.pool == pool]
        assert accuracies == {max(kind.accuracy for kind in kinds)}
    assert min(best[h100]) > max(best[t4])


def test_a_model_that_is_late_everywhere_has_no_triplet() -> None:
    problem = fleets.problem(fleets.fleet((A100, 1)), [fleets.model(slo_s=1e-4)])
    assert triplets(problem) == {A100: {}}


def test_the_paper_s_slot_preferences_follow_from_one_rule() -> None:
    """Section III-E: size 3 in slot 4, size 2 not in 4, size 1 from 0; 5 is no slot for size 2."""
    starts = {name: [spot.start for spot in size.spots] for name, size in SIZES.items()}
    assert starts["7g.80gb"] == starts["4g.40gb"] == [0]
    assert starts["3g.40gb"] == [4, 0]
    assert starts["2g.20gb"] == [0, 2, 4]
    assert starts["1g.10gb"] == [0, 1, 2, 3, 4, 5, 6]
    assert [spot.start for spot in SIZES["3g.40gb"].thrifty] == [4]


@pytest.mark.parametrize("name", gpu_types.names())
def test_every_spot_is_a_place_that_the_driver_allows(name: str) -> None:
    """Free memory slices alone decide where a slice fits, on every GPU type."""
    geometry = gpu_types.load(name).geometry
    known = sizes(geometry)
    assert known
    for size in known.values():
        assert {spot.start for spot in size.spots} == set(geometry.kind(size.profile).starts)
        for spot in size.spots:
            place = Placement(size.profile, spot.start)
            assert not geometry.problem([place])
            assert spot.mask == sum(1 << at for at in geometry.span(place))
        apart = [size.spots[0]]
        for spot in size.spots[1:]:
            if not any(spot.mask & other.mask for other in apart):
                apart.append(spot)
        assert not geometry.problem(Placement(size.profile, spot.start) for spot in apart)
