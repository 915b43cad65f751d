"""MIG geometry on every kind of GPU: layouts never overlap, maximal ones contain all others."""

from collections import Counter
from itertools import combinations, permutations

import pytest

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from services.kit.mig import Geometry, Layout, full_layouts, maximal_layouts
from tests.support.layouts import layouts


def kinds(*rows: tuple[str, int, int, tuple[int, ...], int]) -> tuple[SliceProfile, ...]:
    """Return kinds, each given as (name, compute slices, memory slices, starts, most)."""
    return tuple(
        SliceProfile(name, 0, compute, memory, starts, most, sm_count=14 * compute, memory_bytes=1)
        for name, compute, memory, starts, most in rows
    )


# NVIDIA MIG User Guide, "Supported MIG Profiles"; starts as `nvidia-smi mig -lgipp` prints them.
A100 = Geometry(
    8,
    kinds(
        ("1g.5gb", 1, 1, tuple(range(7)), 7),
        ("1g.10gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.10gb", 2, 2, (0, 2, 4), 3),
        ("3g.20gb", 3, 4, (0, 4), 2),
        ("4g.20gb", 4, 4, (0,), 1),
        ("7g.40gb", 7, 8, (0,), 1),
    ),
)
A30 = Geometry(
    4,
    kinds(
        ("1g.6gb", 1, 1, (0, 1, 2, 3), 4),
        ("2g.12gb", 2, 2, (0, 2), 2),
        ("4g.24gb", 4, 4, (0,), 1),
    ),
)
NO_MIG = Geometry(1, kinds(("whole", 7, 1, (0,), 1)))
A30_MEDIA = Geometry(4, (*kinds(("1g.6gb+me", 1, 1, (0, 1, 2, 3), 1)), *A30.kinds))
"""The media engines go with one slice only, wherever it lies."""
CORES = Geometry(5, kinds(*((f"{n}c", n, n, tuple(range(6 - n)), 5 // n) for n in range(1, 6))))

every_gpu = pytest.mark.parametrize(
    "gpu",
    [A100, A30, A30_MEDIA, NO_MIG, CORES],
    ids=["a100", "a30", "a30 with media engines", "no mig", "cores"],
)


def counts(layout: Layout) -> Counter[str]:
    return Counter(placement.profile for placement in layout)


@every_gpu
def test_every_layout_is_valid_and_none_comes_twice(gpu: Geometry) -> None:
    """No overlap, every start allowed, no kind more often than NVIDIA allows, inside the GPU."""
    found = list(layouts(gpu))

    assert len(set(found)) == len(found)
    assert () in found
    for layout in found:
        assert gpu.problem(layout) == ""
        assert not any(gpu.overlap(one, other) for one, other in permutations(layout, 2))
        assert all(gpu.span(placement).stop <= gpu.memory_slices for placement in layout)
        assert sum(gpu.kind(placement.profile).compute_slices for placement in layout) <= 7


@every_gpu
def test_no_layout_is_missing(gpu: Geometry) -> None:
    """Every valid set of placements, found by enumeration of all subsets, is among the layouts."""
    placements = [Placement(kind.name, start) for kind in gpu.kinds for start in kind.starts]
    smaller = [
        subset
        for size in range(4)
        for subset in combinations(placements, size)
        if not gpu.problem(subset)
    ]
    found = {frozenset(layout) for layout in layouts(gpu) if len(layout) < 4}

    assert found == {frozenset(subset) for subset in smaller}


@every_gpu
def test_full_layouts_are_those_that_no_other_contains(gpu: Geometry) -> None:
    """Found without looking at all layouts, of which a large machine has too many."""
    every = [frozenset(layout) for layout in layouts(gpu)]

    found = [frozenset(layout) for layout in full_layouts(gpu)]

    assert found == [one for one in every if not any(one < other for other in every)]


@every_gpu
def test_a_maximal_layout_cannot_be_extended(gpu: Geometry) -> None:
    """No slice of any kind fits beside it."""
    for layout in maximal_layouts(gpu):
        for kind in gpu.kinds:
            for start in kind.starts:
                assert gpu.problem((*layout, Placement(kind.name, start)))


@every_gpu
def test_every_layouts_slices_fit_into_a_maximal_one(gpu: Geometry) -> None:
    """A plan that counts slices inside a maximal multiset has looked at every layout."""
    maximal = [counts(layout) for layout in maximal_layouts(gpu)]

    for layout in layouts(gpu):
        assert any(counts(layout) <= bound for bound in maximal)


@every_gpu
def test_no_maximal_multiset_is_inside_another(gpu: Geometry) -> None:
    """Each is looked at once, and equal geometries have equal layouts."""
    maximal = [counts(layout) for layout in maximal_layouts(gpu)]

    assert not any(one <= other for one, other in combinations(maximal, 2))
    assert maximal_layouts(gpu) == maximal_layouts(Geometry(gpu.memory_slices, gpu.kinds))


def test_an_a30_has_the_maximal_layouts_that_nvidia_lists() -> None:
    """4, 2+2, 2+1+1, 1+1+1+1."""
    assert [dict(counts(layout)) for layout in maximal_layouts(A30)] == [
        {"1g.6gb": 4},
        {"1g.6gb": 2, "2g.12gb": 1},
        {"2g.12gb": 2},
        {"4g.24gb": 1},
    ]


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ((Placement("5g.30gb", 0),), "no profile '5g.30gb'; this GPU has 1g.5gb, "),
        ((Placement("3g.20gb", 2),), "3g.20gb@2 may start at (0, 4) only"),
        ((Placement("3g.20gb", 0), Placement("2g.10gb", 2)), "2g.10gb@2 overlaps 3g.20gb@0"),
        ((Placement("7g.40gb", 0), Placement("7g.40gb", 0)), "at most 1 x 7g.40gb on one GPU"),
    ],
    ids=["unknown", "start", "overlap", "too many"],
)
def test_what_is_wrong_with_a_layout_is_said(layout: Layout, problem: str) -> None:
    """The message names the slice, and what is allowed."""
    assert A100.problem(layout).startswith(problem)


def test_an_unknown_kind_is_a_key_error() -> None:
    """The error names the kind."""
    with pytest.raises(KeyError, match=r"5g\.30gb"):
        A100.kind("5g.30gb")
