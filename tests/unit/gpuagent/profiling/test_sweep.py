"""Points that the profiler measures, and those that it leaves out."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.profiling.core.sweep import Grid, Limits, Point, Sweep
from services.kit.errors import InvalidArgument
from services.kit.profiles.core.measurement import Measurement
from tests.support.examples import examples

SIZES = (1, 2, 4, 8)


def result(point: Point, latency_s: float, energy_j: float = 1.0) -> Measurement:
    return Measurement(
        gpu="a100-40gb",
        profile=point.profile,
        batch_size=point.batch_size,
        processes=point.processes,
        clock_mhz=point.clock_mhz,
        latency_s=latency_s,
        throughput_rps=point.processes * point.batch_size / latency_s if latency_s else 0.0,
        energy_j=energy_j * point.batch_size,
    )


def measured(sweep: Sweep, truth: Callable[[Point], Measurement]) -> list[Point]:
    """Measure to the end; return the points in the order of measuring."""
    order = []
    while remaining := sweep.remaining():
        order.append(remaining[0])
        sweep.add(truth(remaining[0]))
    return order


def test_a_grid_is_measured_from_small_to_large_and_from_fast_to_slow() -> None:
    grid = Grid.of(["3g.20gb", "1g.5gb"], [2, 1], [1, 2], [0, 700, 990])
    order = measured(Sweep(grid), lambda point: result(point, 0.01))

    assert order == list(grid.points())
    assert order[:4] == [
        Point("3g.20gb", 1, 1, 0),
        Point("3g.20gb", 1, 1, 990),
        Point("3g.20gb", 1, 1, 700),
        Point("3g.20gb", 1, 2, 0),
    ]
    assert len(order) == 2 * 2 * 2 * 3


def test_the_highest_clock_is_always_measured() -> None:
    """Only it shows whether lower clocks and larger batches can matter."""
    assert Grid.of(["whole"], [1], [1], [700]).clocks_mhz == (0, 700)


def test_beyond_what_did_not_run_nothing_is_tried() -> None:
    """Batch 4 with two processes runs out of memory: neither more of either nor a lower clock."""

    def truth(point: Point) -> Measurement:
        fits = point.processes * point.batch_size < 8
        return result(point, 0.01 if fits else 0.0)

    grid = Grid.of(["1g.5gb"], SIZES, [1, 2, 3], [0, 700])
    order = measured(Sweep(grid), truth)

    failed = [(p.processes, p.batch_size) for p in order if not truth(p).ran]
    assert failed == [(1, 8), (2, 4)]
    ran = {(p.processes, p.batch_size) for p in order if truth(p).ran}
    assert ran == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 1), (3, 2)}


def test_far_beyond_the_objective_nothing_slower_is_measured() -> None:
    def truth(point: Point) -> Measurement:
        stretch = 2 if point.clock_mhz else 1
        return result(point, 0.1 * point.batch_size * stretch, 1 / point.batch_size)

    grid = Grid.of(["1g.5gb"], SIZES, [1, 2], [0, 700])
    order = measured(Sweep(grid, Limits(too_slow_s=0.35)), truth)

    assert [(p.processes, p.batch_size, p.clock_mhz) for p in order] == [
        (1, 1, 0),
        (1, 1, 700),
        (1, 2, 0),
        (1, 2, 700),  # 0.4 s: no larger batch at this clock
        (1, 4, 0),  # 0.4 s: no larger batch, and not at a lower clock
        (2, 1, 0),
        (2, 1, 700),
        (2, 2, 0),
    ]


def test_another_slice_is_another_matter() -> None:
    """A point that did not run on a small slice is tried on a larger one."""
    grid = Grid.of(["1g.5gb", "7g.40gb"], [1], [1])
    order = measured(Sweep(grid), lambda p: result(p, 0.0 if p.profile == "1g.5gb" else 0.1))
    assert [point.profile for point in order] == ["1g.5gb", "7g.40gb"]


def test_batch_sizes_end_where_they_gain_neither_speed_nor_energy() -> None:
    """Twice the batch in twice the time at the same energy per item: a larger one is pointless."""
    grid = Grid.of(["1g.5gb"], SIZES, [1])
    saturated = measured(Sweep(grid), lambda p: result(p, 0.1 * max(p.batch_size, 2)))
    leaner = measured(Sweep(grid), lambda p: result(p, 0.1 * p.batch_size, 1 / p.batch_size))

    assert [point.batch_size for point in saturated] == [1, 2, 4]
    assert [point.batch_size for point in leaner] == list(SIZES)


POINTS = st.builds(
    Point,
    st.sampled_from(["1g.5gb", "7g.40gb"]),
    st.integers(1, 3),
    st.sampled_from(SIZES),
    st.sampled_from([0, 990, 700]),
)


@examples(0.25)
@given(st.dictionaries(POINTS, st.sampled_from([0.0, 0.1, 1.0, 10.0])), st.floats(0.05, 20.0))
def test_a_sweep_ends_and_measures_nothing_twice_wherever_it_begins(
    known: dict[Point, float], too_slow_s: float
) -> None:
    """Resumed with any knowledge; what is pruned has a reason, what is left has none."""
    grid = Grid.of(["1g.5gb", "7g.40gb"], SIZES, [1, 2, 3], [0, 990, 700])
    sweep = Sweep(grid, Limits(too_slow_s))
    for point, latency_s in known.items():
        sweep.add(result(point, latency_s))
    before = set(sweep.measured)
    order = measured(sweep, lambda p: result(p, known.get(p, 0.1 * p.batch_size)))

    assert len(order) == len(set(order))
    assert not before & set(order)
    assert all(point in sweep.measured or sweep.pruned(point) for point in grid.points())


@pytest.mark.parametrize(
    ("batch_sizes", "processes", "profiles", "field"),
    [
        ([], [1], ["whole"], "batch"),
        ([0], [1], ["whole"], "batch"),
        ([1], [49], ["whole"], "processes"),
        ([1], [1], [], "slices"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(
    batch_sizes: list[int], processes: list[int], profiles: list[str], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Grid.of(profiles, batch_sizes, processes)
    assert caught.value.field == field
