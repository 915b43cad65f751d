"""Attribution: the parts always sum to the whole."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.energy import KEPT_ENDED, Account, Used, Window, attribute
from services.kit.errors import InvalidArgument

JOULES = st.floats(0.0, 1e6)
ACTIVITY = st.dictionaries(st.sampled_from("abcde"), st.floats(0.0, 1e6), max_size=5)
WINDOWS = st.builds(Window, JOULES, JOULES, ACTIVITY)


def _sum(account: Account) -> float:
    segments = (entry.active_j for entry in account.segments.values())
    return math.fsum((account.idle_j, account.unattributed_j, *segments))


@given(WINDOWS)
def test_the_parts_of_a_window_sum_to_the_whole(window: Window) -> None:
    parts = attribute(window)

    whole = math.fsum((parts.idle_j, parts.unattributed_j, *parts.active_j.values()))
    assert whole == pytest.approx(window.total_j, rel=1e-9, abs=1e-9)
    assert min(parts.idle_j, parts.unattributed_j, *parts.active_j.values()) >= 0


@given(WINDOWS)
def test_active_energy_is_in_proportion_to_activity(window: Window) -> None:
    parts = attribute(window)

    for one, one_j in parts.active_j.items():
        for other, other_j in parts.active_j.items():
            left = one_j * window.activity[other]
            right = other_j * window.activity[one]
            assert left == pytest.approx(right, rel=1e-6, abs=1e-3)


@given(st.lists(WINDOWS, max_size=20), st.sets(st.sampled_from("abcde")))
def test_the_parts_of_an_account_sum_to_its_whole(windows: list[Window], opened: set[str]) -> None:
    """Segments without an entry included: their energy is unattributed, not lost."""
    account = Account()
    for name in sorted(opened):
        account = account.opened(name, "m", "v")
    for window in windows:
        account = account.after(window, Used())

    assert _sum(account) == pytest.approx(account.total_j, rel=1e-9, abs=1e-6)
    assert account.total_j == pytest.approx(math.fsum(w.total_j for w in windows))


def test_idle_energy_comes_first_and_is_bounded_by_all_there_is() -> None:
    assert attribute(Window(30.0, 50.0, {"a": 1.0})).idle_j == 30.0
    assert attribute(Window(80.0, 50.0, {"a": 1.0, "b": 3.0})).active_j == {"a": 7.5, "b": 22.5}


def test_energy_without_activity_is_unattributed() -> None:
    parts = attribute(Window(80.0, 50.0, {"a": 0.0}))

    assert (parts.unattributed_j, dict(parts.active_j)) == (30.0, {})


def test_a_meter_that_went_back_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=">= 0"):
        Window(-1.0, 0.0)


@given(st.integers(0, 3 * KEPT_ENDED), st.integers(0, 5))
def test_merging_ended_segments_keeps_energy_counts_and_those_that_run(
    ended: int, running: int
) -> None:
    names = [f"s-{number}" for number in range(ended + running)]
    account = Account()
    for number, name in enumerate(names):
        account = account.opened(name, "m", f"v{number % 2}")
        account = account.after(Window(2.0, 0.5, {name: 1.0}), Used({name: 3}, batches={name: 2}))
    alive = frozenset(names[ended:])

    compact = account.compacted(alive).compacted(alive)

    assert _sum(compact) == pytest.approx(account.total_j)
    assert sum(entry.requests for entry in compact.segments.values()) == 3 * len(names)
    assert sum(entry.batches for entry in compact.segments.values()) == 2 * len(names)
    assert alive <= compact.segments.keys()
    assert len(compact.segments) <= KEPT_ENDED + running + 2
