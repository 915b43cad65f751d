"""The difference between two plans, and nothing but the difference."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.records import ClockChange, ShareChange
from services.planner.core.explain.explanation import diff
from tests.support.planner.plans import PREDICTION, plan, segment

layouts = st.dictionaries(st.integers(0, 6), st.sampled_from(["small", "large"]), max_size=7)


@given(layouts, layouts)
def test_what_is_stopped_kept_and_started_makes_up_both_plans(
    old: dict[int, str], new: dict[int, str]
) -> None:
    before = plan(1, [segment(variant, start) for start, variant in old.items()])
    after = plan(2, [segment(variant, start) for start, variant in new.items()])
    found = diff(before, after)

    assert len(found.stopped) + found.kept == len(before.segments)
    assert len(found.started) + found.kept == len(after.segments)
    assert found.kept == sum(new.get(start) == variant for start, variant in old.items())
    assert {*after.segments} - {*found.started} == {*before.segments} - {*found.stopped}


@given(layouts)
def test_a_plan_does_not_differ_from_itself(layout: dict[int, str]) -> None:
    same = plan(3, [segment(variant, start) for start, variant in layout.items()])
    found = diff(same, same)

    assert (found.started, found.stopped, found.shares, found.clocks) == ((), (), (), ())
    assert found.kept == len(same.segments)


def test_a_segment_that_was_started_again_elsewhere_in_time_is_no_difference() -> None:
    """A rollback runs what an older plan ran, under new ids."""
    found = diff(
        plan(1, [segment("small", 0, segment_id="s-old")]),
        plan(9, [segment("small", 0, segment_id="s-new")]),
    )

    assert (found.kept, found.started, found.stopped) == (1, (), ())


def test_a_share_that_changes_has_the_later_plans_id() -> None:
    found = diff(
        plan(1, [segment("small", 0, 0.25, "s-old"), segment("large", 4, 0.75)]),
        plan(2, [segment("small", 0, 0.5, "s-new"), segment("large", 4, 0.75)]),
    )

    assert found.shares == (ShareChange("s-new", 0.25, 0.5),)


def test_a_clock_that_is_given_back_is_a_change_to_zero() -> None:
    found = diff(
        plan(1, [], clocks_mhz={"GPU-a": 1005, "GPU-b": 900}),
        plan(2, [], clocks_mhz={"GPU-b": 900, "GPU-c": 705}),
    )

    assert found.clocks == (ClockChange("GPU-a", 1005, 0), ClockChange("GPU-c", 0, 705))


def test_both_versions_and_predictions_are_shown() -> None:
    cheaper = replace(PREDICTION, power_w=80.0)
    found = diff(plan(4, []), plan(0, [], prediction=cheaper))

    assert (found.from_version, found.to_version) == (4, 0)
    assert (found.from_outlook.power_w, found.to_outlook.power_w) == (120.0, 80.0)
