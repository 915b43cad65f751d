"""Partitions on devices: Algorithm 2 keeps its limits, and the exact program is never worse."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.muserve.planning import exact, power_aware
from benchmarks.muserve.planning.alpaserve import balanced, spread
from benchmarks.muserve.planning.clocking import V100, demands
from benchmarks.muserve.planning.model import (
    Demand,
    Device,
    Limits,
    Partition,
    Placement,
    Served,
    clock_ratios,
    problem,
)
from services.kit.errors import InvalidArgument
from services.kit.hardware.clock_curve import RATIOS
from services.planner.core.placement.power_aware import ALIKE, fitting_score
from tests.support.examples import examples

GB = 10**9


def part(
    model: str, index: int = 0, *, gb: float = 1, latency_s: float = 0.1, sensitivity: float = 1.0
) -> Partition:
    return Partition(model, index, round(gb * GB), latency_s, sensitivity)


def devices(count: int, gb: float = 4) -> tuple[Device, ...]:
    return tuple(Device(f"gpu-{number}", round(gb * GB)) for number in range(count))


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[Device, ...], list[Demand], Limits]:
    """Up to three devices and five partitions of up to three models, as tight as may be."""
    demands = [
        Demand(
            part(
                f"m{draw(st.integers(0, 2))}",
                index,
                gb=draw(st.sampled_from([0.5, 1, 2, 3])),
                sensitivity=(sensitivity := draw(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]))),
            ),
            clock_ratio=draw(st.sampled_from([V100.thriftiest(sensitivity), 0.8, 1.0])),
            load=draw(st.sampled_from([0.05, 0.2, 0.4])),
        )
        for index in range(draw(st.integers(1, 5)))
    ]
    limits = Limits(draw(st.integers(1, 3)), draw(st.sampled_from([0.5, 1.0])))
    return devices(draw(st.integers(1, 3))), demands, limits


def total(placement: Placement, where: tuple[Device, ...], limits: Limits) -> float:
    return sum(clock_ratios(placement, where, limits).values())


def best_of_all(where: tuple[Device, ...], demands: list[Demand], limits: Limits) -> float | None:
    """The least sum of clocks over every placement there is."""
    sums = [
        total(placement, where, limits)
        for chosen in product(where, repeat=len(demands))
        if not problem(placement := dict(zip(demands, chosen, strict=True)), limits)
    ]
    return min(sums, default=None)


@examples(1.2)
@given(cases())
def test_the_exact_placement_is_the_best_there_is_and_never_worse_than_algorithm_2(
    case: tuple[tuple[Device, ...], list[Demand], Limits],
) -> None:
    """Against every placement; both keep memory, time and CT, and Algorithm 2 finds none alone."""
    where, demands, limits = case
    best = best_of_all(where, demands, limits)
    greedy = power_aware.place(where, demands, limits)
    found = exact.place(where, demands, limits)

    assert (found is None) == (best is None)
    if greedy is not None:
        assert problem(greedy, limits) == ""
        assert set(greedy) == set(demands)
    if found is not None and best is not None:
        assert found.proven
        assert problem(found.placement, limits) == ""
        assert total(found.placement, where, limits) == pytest.approx(best)
        if greedy is not None:
            assert total(found.placement, where, limits) <= total(greedy, where, limits) + 1e-9


def test_without_time_for_a_search_algorithm_2s_placement_stands() -> None:
    """HiGHS gets no time to prove anything: whatever comes back is no worse than the greedy way."""
    demands = [
        Demand(part(f"m{n}", n, gb=0.7, sensitivity=n / 20), 0.3 + n / 30, 0.07) for n in range(20)
    ]
    where = devices(6)
    greedy = power_aware.place(where, demands)
    found = exact.place(where, demands, time_limit_s=0.0)
    assert greedy is not None
    assert found is not None
    assert total(found.placement, where, Limits()) <= total(greedy, where, Limits()) + 1e-9


def test_algorithm_2_puts_alike_partitions_together() -> None:
    """Two sensitive and two insensitive models on two devices: one device's clock can drop."""
    demands = [
        Demand(part("a", sensitivity=1.0), 1.0),
        Demand(part("b", sensitivity=0.2), 0.4),
        Demand(part("c", sensitivity=0.95), 0.9),
        Demand(part("d", sensitivity=0.25), 0.45),
    ]
    placement = power_aware.place(devices(2), demands)
    assert placement is not None
    assert clock_ratios(placement, devices(2)) == {"gpu-0": 1.0, "gpu-1": 0.45}


def test_a_model_at_its_most_devices_may_still_use_those_it_has() -> None:
    """CT counts devices; the printed algorithm counts partitions, and stops at CT of them."""
    demands = [Demand(part("a", index, sensitivity=index / 4), 0.5) for index in range(4)]
    placement = power_aware.place(devices(3), demands, Limits(most_devices=1))
    assert placement is not None
    assert len(set(placement.values())) == 1


def test_an_empty_device_is_taken_before_one_that_is_not_alike() -> None:
    assert fitting_score(0.5, [(0.5 + 0.9 * ALIKE, 1.0)]) > fitting_score(0.5, [])
    assert fitting_score(0.5, [(0.5 + 1.1 * ALIKE, 1.0)]) < fitting_score(0.5, [])
    assert fitting_score(0.5, [(1.0, 3.0), (0.0, 1.0)]) == pytest.approx(-0.25)


@given(st.floats(0.0, 1.0), st.sampled_from(RATIOS))
def test_below_the_thriftiest_clock_the_same_work_takes_more_energy(
    sensitivity: float, ratio: float
) -> None:
    best = V100.thriftiest(sensitivity)
    assert V100.energy_ratio(sensitivity, best) <= V100.energy_ratio(sensitivity, ratio)
    assert V100.stretch(sensitivity, 1.0) == 1.0


@given(st.floats(0.0, 1.0), st.floats(1.0, 20.0))
def test_a_partition_requests_a_clock_that_keeps_its_share_of_the_objective(
    sensitivity: float, scale: float
) -> None:
    """The requested clock is the least that keeps it and saves energy; else it is the highest."""
    model = Served("m", (part("m", sensitivity=sensitivity), part("m", 1)), 1.0, scale * 0.2)
    for demand in demands(model, waiting=0.5):
        longer = V100.stretch(demand.partition.sensitivity, demand.clock_ratio)
        assert longer <= max(0.5 * scale, 1.0) + 1e-9
        assert demand.clock_ratio >= V100.thriftiest(demand.partition.sensitivity)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=7), st.integers(1, 4))
def test_stages_are_cut_so_that_the_slowest_is_as_fast_as_can_be(
    latencies_s: list[float], count: int
) -> None:
    """Against every way to cut the chain."""
    chain = [part("m", index, latency_s=each) for index, each in enumerate(latencies_s)]
    stages = balanced(chain, count)
    assert [each for stage in stages for each in stage] == chain
    assert len(stages) == min(count, len(chain))
    slowest_s = max(sum(each.latency_s for each in stage) for stage in stages)
    for cuts in product([False, True], repeat=len(chain) - 1):
        if sum(cuts) == len(stages) - 1:
            sums = [latencies_s[0]]
            for cut, latency_s in zip(cuts, latencies_s[1:], strict=True):
                sums = [*sums, latency_s] if cut else [*sums[:-1], sums[-1] + latency_s]
            assert slowest_s <= max(sums) + 1e-9


def test_alpaserve_gives_stage_i_of_every_model_to_device_i() -> None:
    model = Served("m", tuple(part("m", index) for index in range(4)), 1.0, 1.0)
    where = spread(model, devices(2))
    assert [where[each].name for each in model.partitions] == ["gpu-0", "gpu-0", "gpu-1", "gpu-1"]


@pytest.mark.parametrize(("latency_s", "sensitivity"), [(0.0, 0.5), (0.1, 1.1)])
def test_a_partition_that_cannot_be_is_refused(latency_s: float, sensitivity: float) -> None:
    with pytest.raises(InvalidArgument, match=r"latency_s|sensitivity"):
        part("m", latency_s=latency_s, sensitivity=sensitivity)
