"""Attribution: the parts always sum to the whole."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import SegmentEnergy
from services.gpuagent.energy.core.account import (
    KEPT_ENDED,
    Account,
)
from services.gpuagent.energy.core.attribution import (
    MOST_STEERED,
    EnergyWindow,
    IdleShare,
    attribute,
    error_ratio,
    share_idle,
    steered_w,
)
from services.gpuagent.energy.core.progress import Work
from services.kit.errors import InvalidArgument
from tests.support.examples import examples

JOULES = st.floats(0.0, 1e6)
ACTIVITY = st.dictionaries(st.sampled_from("abcde"), st.floats(0.0, 1e6), max_size=5)
HELD = st.dictionaries(st.sampled_from("abcde"), st.floats(0.0, 1.0), max_size=5)
WINDOWS = st.builds(EnergyWindow, JOULES, JOULES, ACTIVITY, HELD)


def unused(name: str) -> SegmentEnergy:
    return SegmentEnergy(name, "m", "v")


RULES: tuple[IdleShare, ...] = ("none", "by_slice", "by_busy")


@given(WINDOWS)
def test_the_parts_of_a_window_sum_to_the_whole(window: EnergyWindow) -> None:
    """No joule is lost or made, and no part is negative."""
    parts = attribute(window)

    whole = math.fsum((parts.idle_j, parts.unattributed_j, *parts.active_j.values()))
    assert whole == pytest.approx(window.total_j, rel=1e-9, abs=1e-9)
    assert min(parts.idle_j, parts.unattributed_j, *parts.active_j.values()) >= 0


@given(WINDOWS)
def test_active_energy_is_in_proportion_to_activity(window: EnergyWindow) -> None:
    """Of two segments, the one of twice the activity drew twice the energy."""
    parts = attribute(window)

    for one, one_j in parts.active_j.items():
        for other, other_j in parts.active_j.items():
            left = one_j * window.activity[other]
            right = other_j * window.activity[one]
            assert left == pytest.approx(right, rel=1e-6, abs=1e-3)


@given(st.lists(WINDOWS, max_size=20), st.sets(st.sampled_from("abcde")))
def test_the_parts_of_an_account_sum_to_its_whole(
    windows: list[EnergyWindow], opened: set[str]
) -> None:
    """Segments without an entry included: their energy is unattributed, not lost."""
    account = Account()
    for name in sorted(opened):
        account = account.opened(unused(name))
    for window in windows:
        account = account.after(window)
        assert account.window_error_ratio * window.total_j <= 1e-6

    assert account.parts_j == pytest.approx(account.total_j, rel=1e-9, abs=1e-6)
    assert account.error_ratio * account.total_j <= 1e-6
    assert account.total_j == pytest.approx(math.fsum(w.total_j for w in windows))


def test_idle_energy_comes_first_and_is_bounded_by_all_there_is() -> None:
    """A meter that shows less than idle power leaves nothing for the segments."""
    assert attribute(EnergyWindow(30.0, 50.0, {"a": 1.0})).idle_j == 30.0
    assert attribute(EnergyWindow(80.0, 50.0, {"a": 1.0, "b": 3.0})).active_j == {
        "a": 7.5,
        "b": 22.5,
    }


def test_energy_without_activity_is_unattributed() -> None:
    """Where no segment was active, none is charged."""
    parts = attribute(EnergyWindow(80.0, 50.0, {"a": 0.0}))

    assert (parts.unattributed_j, dict(parts.active_j)) == (30.0, {})


def test_a_meter_that_went_back_is_refused() -> None:
    """No figure of a window is negative; zero is a figure."""
    EnergyWindow(0.0, 0.0, {"a": 0.0}, {"a": 0.0})
    for figures in ((-1.0, 0.0), (0.0, -1.0), (0.0, 0.0, {"a": 1.0, "b": -1.0})):
        with pytest.raises(InvalidArgument, match=">= 0, got EnergyWindow"):
            EnergyWindow(*figures)
    with pytest.raises(InvalidArgument, match=">= 0, got EnergyWindow"):
        EnergyWindow(0.0, 0.0, held={"a": -1.0})


@examples(0.5)
@given(st.integers(0, 3 * KEPT_ENDED), st.integers(0, 5))
def test_merging_ended_segments_keeps_energy_counts_and_those_that_run(
    ended: int, running: int
) -> None:
    """However many segments ended, the account stays small and its sums are the same."""
    names = [f"s-{number}" for number in range(ended + running)]
    account = Account()
    for number, name in enumerate(names):
        account = account.opened(SegmentEnergy(name, "m", f"v{number % 2}"))
        account = account.after(
            EnergyWindow(2.0, 0.5, {name: 1.0}, work={name: Work(requests=3, batches=2)})
        )
    alive = frozenset(names[ended:])

    compact = account.compacted(alive).compacted(alive)

    assert compact.parts_j == pytest.approx(account.total_j)
    assert sum(entry.requests for entry in compact.segments.values()) == 3 * len(names)
    assert sum(entry.batches for entry in compact.segments.values()) == 2 * len(names)
    assert alive <= compact.segments.keys()
    assert len(compact.segments) <= KEPT_ENDED + running + 2


def test_merging_keeps_the_stages_of_a_pipeline_apart() -> None:
    """Requests are counted at stage 0 alone, so stages must not merge."""
    account = Account()
    for number in range(KEPT_ENDED + 4):
        account = account.opened(SegmentEnergy(f"s-{number}", "m", "v", stage=number % 2))

    merged = {
        name: entry.stage
        for name, entry in account.compacted(frozenset()).segments.items()
        if name.startswith("ended:")
    }

    assert merged == {"ended:m/v": 0, "ended:m/v/1": 1}


@given(WINDOWS, st.sampled_from(RULES))
def test_shared_idle_energy_is_never_more_than_there_is(
    window: EnergyWindow, rule: IdleShare
) -> None:
    """Whatever the rule, shares are positive and sum to idle energy at most."""
    idle_j = attribute(window).idle_j
    shares = share_idle(replace(window, idle_share=rule), idle_j)

    assert math.fsum(shares.values()) <= idle_j * (1 + 1e-9) + 1e-300  # the smallest floats round
    assert all(share >= 0 for share in shares.values())


@given(WINDOWS, st.sampled_from(RULES))
def test_sharing_idle_energy_changes_no_other_figure(window: EnergyWindow, rule: IdleShare) -> None:
    """Shares of idle energy stand beside the parts."""
    account = Account().opened(unused("a")).opened(unused("b"))
    without = account.after(window)
    shared = account.after(replace(window, idle_share=rule))

    assert (shared.total_j, shared.idle_j, shared.parts_j) == (
        without.total_j, without.idle_j, without.parts_j
    )  # fmt: skip
    for name, entry in without.segments.items():
        assert shared.segments[name].active_j == entry.active_j


def test_idle_energy_goes_by_slices_held_or_by_activity() -> None:
    """By slice, the part that no segment holds is shared with none; by activity, all is shared."""
    window = EnergyWindow(100.0, 80.0, {"a": 1.0, "b": 3.0}, {"a": 0.5, "b": 0.25, "c": 0.125})

    by_slice, by_busy = (replace(window, idle_share=rule) for rule in RULES[1:])

    assert share_idle(window, 80.0) == {}
    assert share_idle(by_slice, 80.0) == {"a": 40.0, "b": 20.0, "c": 10.0}
    assert share_idle(by_busy, 80.0) == {"a": 20.0, "b": 60.0}
    assert share_idle(replace(by_busy, activity={}), 80.0) == {}, "no segment was busy"


@given(st.floats(1.0, 700.0), st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_a_receipt_is_steered_towards_what_is_owed_and_only_so_far(
    power_w: float, owed_j: float, drawn_j: float
) -> None:
    """The correction has the sign of the debt, and is a fifth of the power at most."""
    steered = steered_w(power_w, owed_j, drawn_j)

    assert abs(steered / power_w - 1) <= MOST_STEERED + 1e-9
    assert (steered - power_w) * owed_j >= 0


def test_a_quarter_of_what_receipts_lack_is_made_good_in_the_next_window() -> None:
    """Of 20 J drawn, 8 J are owed: the next 20 J are stated as 22 J."""
    assert steered_w(100.0, 8.0, 20.0) == pytest.approx(110.0)
    assert steered_w(100.0, -8.0, 20.0) == pytest.approx(90.0)


def test_shares_of_slices_that_hold_more_than_the_gpu_are_scaled_down() -> None:
    """Segments that share slices hold more than one GPU together; idle energy stays one GPU's."""
    window = EnergyWindow(10.0, 8.0, held={"a": 1.0, "b": 1.0}, idle_share="by_slice")

    assert share_idle(window, 8.0) == {"a": 4.0, "b": 4.0}


@pytest.mark.parametrize(
    ("parts_j", "total_j", "ratio"),
    [(90.0, 100.0, 0.1), (110.0, 100.0, 0.1), (0.0, 0.0, 0.0), (3.0, 0.0, 3.0), (0.5, 0.5, 0.0)],
)
def test_the_error_of_parts_is_their_distance_from_the_total(
    parts_j: float, total_j: float, ratio: float
) -> None:
    """As a share of the total; of nothing, the joules themselves."""
    assert error_ratio(parts_j, total_j) == pytest.approx(ratio)


def test_a_part_that_gets_lost_shows_in_the_self_check() -> None:
    """An account without its segments lacks their share of the energy."""
    account = Account().opened(unused("a")).after(EnergyWindow(10.0, 4.0, {"a": 1.0}))
    lossy = replace(account, segments={})

    assert account.error_ratio == 0
    assert lossy.error_ratio == pytest.approx(0.6)
