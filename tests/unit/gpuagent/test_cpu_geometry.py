"""Partitions of a CPU's cores: few layouts, and every number of cores."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.core.cpu_geometry import geometry
from services.kit.mig import full_layouts, maximal_layouts
from tests.support.examples import examples

GIB = 2**30


def held(cores: int) -> list[Counter[int]]:
    """The sizes of each layout that cannot be extended."""
    cut = geometry(cores, cores * GIB)
    return [
        Counter(cut.kind(place.profile).compute_slices for place in layout)
        for layout in maximal_layouts(cut)
    ]


@pytest.mark.parametrize("cores", range(1, 9))
def test_up_to_eight_cores_any_sizes_fit_that_add_up(cores: int) -> None:
    """InfAdapter's problem: every way to share cores out is a layout, and no other is."""

    def partitions(rest: int, most: int) -> list[Counter[int]]:
        if not rest:
            return [Counter()]
        found = []
        for size in range(min(rest, most), 0, -1):
            found += [one + Counter([size]) for one in partitions(rest - size, size)]
        return found

    key = dict.items
    assert sorted(sorted(key(one)) for one in held(cores)) == sorted(
        sorted(key(one)) for one in partitions(cores, cores)
    )


@pytest.mark.parametrize("cores", [1, 2, 7, 8, 9, 16, 17, 24, 48, 64, 100, 128])
def test_layouts_are_valid_few_and_leave_less_than_a_slice_free(cores: int) -> None:
    cut = geometry(cores, cores * GIB)
    smallest = cut.kinds[0].memory_slices
    layouts = full_layouts(cut)
    assert 1 <= len(layouts) <= 677
    for layout in layouts:
        assert not cut.problem(layout)
        used = sum(len(cut.span(place)) for place in layout)
        assert cores - smallest < used <= cores
    assert cut.kinds[-1].compute_slices == cores, "the whole machine is a slice"


@examples(0.4)
@given(st.data())
def test_above_eight_cores_powers_of_two_fit_wherever_they_add_up(data: st.DataObject) -> None:
    """No order of coming and going wastes a core for good: slices are aligned to their sizes."""
    cores = data.draw(st.sampled_from([9, 12, 16, 20, 32]))
    smallest = geometry(cores, GIB).kinds[0].compute_slices
    left, wanted = cores, Counter[int]()
    while left >= smallest:
        sizes = [smallest * 2**n for n in range(5) if smallest * 2**n <= min(left, cores - 1)]
        size = data.draw(st.sampled_from(sizes))
        wanted[size] += 1
        left -= size
    assert any(wanted <= bound for bound in held(cores))


@given(st.integers(1, 64), st.integers(1, 2**40))
def test_a_slice_has_its_share_of_memory(cores: int, memory_bytes: int) -> None:
    for kind in geometry(cores, memory_bytes).kinds:
        assert kind.memory_bytes == memory_bytes * kind.compute_slices // cores
        assert kind.sm_count == kind.compute_slices == kind.memory_slices
