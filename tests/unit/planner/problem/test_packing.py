"""Slices on GPUs: the fewest that hold them."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import InvalidArgument
from services.kit.mig import maximal_layouts
from services.planner.core.problem.packing import gpus_needed, pack
from tests.support.examples import examples
from tests.support.planner import fleets

A100, A30 = fleets.gpu_type(), fleets.gpu_type("a30")
NAMES = [kind.name for kind in A30.geometry.kinds]


@examples(0.4)
@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4), min_size=1))
def test_packing_takes_the_fewest_gpus(wanted: dict[str, int]) -> None:
    """Equal to trying every combination of layouts, on the A30."""
    chosen = pack(A30.geometry, frozenset(wanted.items()))
    held: Counter[str] = Counter()
    for layout, count in chosen:
        assert A30.geometry.problem(layout) == ""
        for placement in layout:
            held[placement.profile] += count
    assert all(held[name] >= count for name, count in wanted.items())
    assert sum(count for _, count in chosen) == fewest(wanted)


def fewest(wanted: dict[str, int]) -> int:
    layouts = [Counter(each.profile for each in layout) for layout in maximal_layouts(A30.geometry)]
    for gpus in range(1, 20):
        for counts in product(range(gpus + 1), repeat=len(layouts)):
            if sum(counts) == gpus:
                held = sum(
                    (
                        Counter({n: c * times for n, c in each.items()})
                        for each, times in zip(layouts, counts, strict=True)
                    ),
                    start=Counter[str](),
                )
                if all(held[name] >= count for name, count in wanted.items()):
                    return gpus
    raise AssertionError(wanted)


def test_a_slice_that_no_gpu_has_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"9g\.90gb"):
        pack(A100.geometry, frozenset({("9g.90gb", 1)}))


def test_a_fleet_holds_a_set_of_slices_or_says_that_it_cannot() -> None:
    """Two 7g need two GPUs; three do not fit on two."""
    pool = fleets.pool()
    problem = fleets.problem(fleets.fleet((pool, 2)), [fleets.model()])
    kind = next(kind for kind in problem.catalog if kind.profile == "7g.40gb")
    assert gpus_needed(problem, {kind: 2}) == {pool: 2}
    assert gpus_needed(problem, {kind: 3}) is None
    assert gpus_needed(problem, {}) == {}
