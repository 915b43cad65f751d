"""The difference between two plans, and nothing but the difference."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cinquefoil.planner.v1 import explanation_pb2
from cinquefoil.planner.v1.records import ClockChange, Goals, PlanInputs, ShareChange
from services.cli.plan.render import difference
from services.kit.rpc.record_mapping import to_message
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


# ---- only like is compared with like -----------------------------------------------------------

figures = st.sampled_from([0.0, 50.0, 50.1, 60.0, 200.0])
inputs = st.builds(
    PlanInputs,
    st.fixed_dictionaries({"Z": figures}),
    st.dictionaries(st.sampled_from(["digits", "text"]), figures),
    st.fixed_dictionaries({"t4": st.sampled_from([1, 2])}),
    st.sampled_from([0.2, 0.9]),
    st.sampled_from([0.9, 0.98]),
    st.sampled_from([None, Goals(clover=1.0), Goals(fewest_gpus=1.0)]),
)


@given(inputs, inputs)
def test_figures_of_other_circumstances_are_never_comparable(
    before: PlanInputs, after: PlanInputs
) -> None:
    """Load, grid, fleet and objective: each is named exactly if it differs, with its figures."""
    found = {
        each.circumstance: each.fields
        for each in diff(plan(1, [], inputs=before), plan(2, [], inputs=after)).unlike
    }

    def alike(one: float, other: float) -> bool:
        return abs(one - other) <= 0.01 * max(one, other)

    loads = {*before.demand_rps, *after.demand_rps}
    same = {
        "load": all(
            alike(before.demand_rps.get(each, 0.0), after.demand_rps.get(each, 0.0))
            for each in loads
        ),
        "grid": alike(before.intensity_gco2e_per_kwh["Z"], after.intensity_gco2e_per_kwh["Z"]),
        "fleet": before.gpus == after.gpus,
        "objective": (before.carbon_weight, before.accuracy_floor, before.goals or Goals(1.0))
        == (after.carbon_weight, after.accuracy_floor, after.goals or Goals(1.0)),
    }
    assert found.keys() == {name for name, holds in same.items() if not holds}
    assert all("objective" in each for each in found.values())
    incomparable = {field for each in found.values() for field in each}
    assert ("carbon_gco2e_per_h" in incomparable) == (not (same["load"] and same["grid"]))
    assert ("latency_s" in incomparable) == (not same["load"])


@given(inputs, inputs, st.floats(1, 50), st.floats(-50, -1))
def test_what_is_printed_of_two_plans_judges_only_what_is_comparable(
    before: PlanInputs, after: PlanInputs, first: float, second: float
) -> None:
    """Of points no ratio is printed: their zero is BASE's."""
    one, other = (
        plan(
            version,
            [],
            inputs=given,
            prediction=replace(PREDICTION, objective=points, carbon_gco2e_per_h=10.0 + version),
        )
        for version, given, points in ((1, before, first), (2, after, second))
    )
    found = diff(one, other)
    console = Console(width=400, no_color=True)
    with console.capture() as capture:
        console.print(difference(to_message(found, explanation_pb2.PlanDiff), [], {}))
    rows = [line for line in capture.get().splitlines() if " " in line.strip()]
    unlike = {field for each in found.unlike for field in each.fields}

    (points,) = (row for row in rows if row.startswith("objective"))
    (carbon,) = (row for row in rows if row.startswith("carbon "))
    assert "%" not in points
    assert "objective" not in unlike or not {"better", "worse"} & {*points.split()}
    assert ("worse" in carbon) == ("carbon_gco2e_per_h" not in unlike)
    assert sum("Not comparable where" in row for row in rows) == len(found.unlike)
