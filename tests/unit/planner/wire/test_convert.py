"""Protobuf <-> the planner's words."""

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DestroySlice,
    LockClock,
    Placement,
    SegmentSpec,
    SegmentState,
)
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.records import (
    Goals,
    Instance,
    LoadForecast,
    ModelRoutes,
    Outcome,
    Plan,
    PlanInputs,
    PlannedSegment,
    PlanState,
    Prediction,
    RoutingTable,
)
from services.kit.errors import InvalidArgument
from services.kit.mig import WHOLE
from services.kit.rpc.record_mapping import from_message, to_message
from services.planner.adapters.wire.convert import (
    load_from,
    routing_to,
)
from services.planner.adapters.wire.convert_node import node_from, step_to
from services.planner.core.cycle.environment import NodeChange
from services.planner.core.model import Pool, Segment, SegmentKind
from services.planner.core.placement.actions import Action, StartSegment, StopSegment
from tests.support.examples import examples

names = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.floats(allow_nan=False)
counts = st.integers(0, 2**31 - 1)
sizes = st.integers(1, 64)
given_names = st.text("aZ0-ä中", min_size=1, max_size=8)
by_name = st.dictionaries(names, numbers, max_size=3)
specs = st.builds(
    SegmentSpec,
    segment_id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True),
    model=given_names,
    variant=given_names,
    batch_size=sizes,
    processes=sizes,
    gpu_uuid=given_names,
    placement=st.builds(Placement, names, counts),
)
goals = st.builds(
    Goals, clover=st.floats(1, 9), fewest_gpus=st.floats(0, 9), infadapter=st.floats(0, 9)
)
inputs = st.builds(
    PlanInputs,
    intensity_gco2e_per_kwh=by_name,
    demand_rps=by_name,
    gpus=st.dictionaries(names, counts, max_size=2),
    carbon_weight=numbers,
    accuracy_floor=numbers,
    goals=goals,
    load_forecast=st.dictionaries(
        names, st.builds(LoadForecast, numbers, numbers, numbers), max_size=2
    ),
)
predictions = st.builds(
    Prediction,
    objective=numbers,
    accuracy=by_name,
    latency_s=by_name,
    unserved_rps=by_name,
    power_w=numbers,
    carbon_gco2e_per_h=numbers,
    gpus=counts,
    gap=st.none() | numbers,
    solve_s=numbers,
)
outcomes = st.builds(
    Outcome,
    since=st.just(datetime(2026, 3, 1, tzinfo=UTC)),
    active_s=numbers,
    requests=counts,
    energy_j=numbers,
    carbon_gco2e=numbers,
    latency_s=by_name,
    accuracy=by_name,
)
plans = st.builds(
    Plan,
    version=counts,
    created_at=st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - `timezones` gives it
    state=st.sampled_from(PlanState),
    strategy=names,
    reason=names,
    inputs=inputs,
    segments=st.lists(
        st.builds(PlannedSegment, specs, names, numbers, numbers, numbers), max_size=2
    ).map(tuple),
    prediction=predictions,
    steps=counts,
    slice_changes=counts,
    failure=names,
    outcome=st.none() | outcomes,
    degraded=names,
    clocks_mhz=st.dictionaries(names, counts, max_size=2),
)

NOW = datetime(2026, 3, 1, 12, 30, 1, 250_000, tzinfo=UTC)
SPEC = SegmentSpec("s-1", "digits", "small", 8, 2, "GPU-a", Placement("1g.5gb", 3))
PLAN = Plan(
    version=7,
    created_at=NOW,
    state=PlanState.FAILED,
    strategy="exact",
    reason="carbon",
    inputs=PlanInputs({"US-CAL": 210.0}, {"digits": 60.0}, {"a100-40gb": 1}, 0.5),
    segments=(PlannedSegment(SPEC, "node-a", 0.75, 444.0, 0.018),),
    prediction=Prediction(
        -1.5, {"digits": 0.97}, {"digits": 0.1}, 120.0, 25.2, 1, 0.0, {"digits": 2.0}, 0.02
    ),
    steps=2,
    slice_changes=1,
    failure="step 7.1.1: UNAVAILABLE: gone",
    outcome=Outcome(3.0, 9, 5.0, 0.25, {"digits": 0.08}, since=NOW),
)


def gpu_message(*, mig_enabled: bool = True) -> inventory_pb2.Gpu:
    profiles = [
        inventory_pb2.SliceProfile(
            name="1g.5gb", compute_slices=1, memory_slices=1, starts=range(7), max_count=7
        ),
        inventory_pb2.SliceProfile(
            name="7g.40gb", compute_slices=7, memory_slices=8, starts=[0], max_count=1
        ),
    ]
    kind = inventory_pb2.GpuType(name="a100-40gb", memory_slices=8, profiles=profiles, sm_count=108)
    return inventory_pb2.Gpu(uuid="GPU-a", type=kind, mig_enabled=mig_enabled)


@examples(0.4)
@given(plans)
def test_every_plan_survives_the_wire(plan: Plan) -> None:
    message = plan_pb2.Plan.FromString(to_message(plan, plan_pb2.Plan).SerializeToString())

    assert from_message(message, Plan) == plan
    assert message.HasField("outcome") == (plan.outcome is not None)


def test_no_field_of_a_plan_is_left_out_of_its_message() -> None:
    """A field that a record gains and the contract lacks would vanish without a word."""
    message = to_message(PLAN, plan_pb2.Plan)
    pairs: list[tuple[Any, Any]] = [
        (PLAN, message),
        (PLAN.inputs, message.inputs),
        (PLAN.prediction, message.prediction),
        (PLAN.segments[0], message.segments[0]),
        (PLAN.segments[0].spec, message.segments[0].spec),
    ]

    for record, message in pairs:
        assert {each.name for each in fields(record)} == set(message.DESCRIPTOR.fields_by_name)


def test_a_plan_of_before_there_were_goals_is_read() -> None:
    """Stores of older planners have such plans."""
    message = to_message(PLAN, plan_pb2.Plan)
    message.inputs.ClearField("goals")

    assert from_message(message, Plan).inputs.goals is None


@pytest.mark.parametrize("gap", [None, 0.0, 0.01])
def test_a_proven_gap_of_zero_is_not_an_unproven_one(gap: float | None) -> None:
    plan = replace(PLAN, prediction=replace(PLAN.prediction, gap=gap), outcome=None)

    assert to_message(plan, plan_pb2.Plan).prediction.HasField("gap") == (gap is not None)
    assert from_message(to_message(plan, plan_pb2.Plan), Plan) == plan


def test_a_routing_table_survives_the_wire() -> None:
    instance = Instance("h:1", "s-1", "small", 0.9, 1.0, 8, "Z", 1.3)
    table = RoutingTable(9, 7, (ModelRoutes("digits", "top-1", 0.2, 95, "shares", (instance,)),))

    assert from_message(routing_to(table), RoutingTable) == table


def test_a_node_keeps_its_geometry_slices_and_segments() -> None:
    message = inventory_pb2.Node(name="node-a", zone="Z", gpus=[gpu_message()])
    message.gpus[0].slices.add().placement.CopyFrom(
        inventory_pb2.Placement(profile="1g.5gb", start=3)
    )
    message.segments.add(state=inventory_pb2.SEGMENT_STATE_READY, endpoints=["h:1"]).spec.CopyFrom(
        spec_message(placement=inventory_pb2.Placement(profile="1g.5gb", start=3))
    )
    node = node_from(message)

    assert node.gpus[0].slices == (Placement("1g.5gb", 3),)
    assert [kind.name for kind in node.gpus[0].type.geometry.kinds] == ["1g.5gb", "7g.40gb"]
    assert node.gpus[0].type.geometry.kind("1g.5gb").starts == tuple(range(7))
    assert node.segments[0].state is SegmentState.READY
    assert node.segments[0].spec.batch_size == 8


def test_a_gpu_that_could_be_cut_but_is_not_in_mig_mode_is_one_whole_slice() -> None:
    message = inventory_pb2.Node(name="node-a", gpus=[gpu_message(mig_enabled=False)])
    message.gpus[0].slices.add().placement.CopyFrom(inventory_pb2.Placement(profile=WHOLE))
    (gpu,) = node_from(message).gpus

    (kind,) = gpu.type.geometry.kinds
    assert (kind.name, kind.sm_count, kind.memory_slices) == (WHOLE, 108, 8)


@pytest.mark.parametrize(("lockable", "highest_mhz"), [(True, 1410), (False, 0)])
def test_a_clock_that_may_not_be_held_is_left_alone(lockable: bool, highest_mhz: int) -> None:
    gpu = gpu_message()
    gpu.type.max_clock_mhz = 1410
    gpu.clock_lockable, gpu.locked_clock_mhz, gpu.clock_mhz = lockable, 1005, 1400
    (found,) = node_from(inventory_pb2.Node(name="node-a", gpus=[gpu])).gpus

    assert (found.type.max_clock_mhz, found.clock_mhz) == (highest_mhz, 1005)


def overlapping(message: inventory_pb2.Node) -> None:
    for profile in ("1g.5gb", "7g.40gb"):
        message.gpus[0].slices.add().placement.CopyFrom(inventory_pb2.Placement(profile=profile))


def unnamed(message: inventory_pb2.Node) -> None:
    message.name = ""


def typeless(message: inventory_pb2.Node) -> None:
    message.gpus[0].type.Clear()


def profileless(message: inventory_pb2.Node) -> None:
    message.gpus[0].type.ClearField("profiles")


def endless(message: inventory_pb2.Node) -> None:
    message.gpus[0].type.profiles[0].starts.append(2**31)  # layouts are sets of bits


def unpowered(message: inventory_pb2.Node) -> None:
    message.gpus[0].type.context_power_w = float("nan")


def crowded(message: inventory_pb2.Node) -> None:
    message.gpus.extend(gpu_message() for _ in range(200))


def with_port(message: inventory_pb2.Node, port: str) -> None:
    message.gpus[0].slices.add().placement.CopyFrom(inventory_pb2.Placement(profile="1g.5gb"))
    spec = spec_message(placement=inventory_pb2.Placement(profile="1g.5gb"))
    state = inventory_pb2.SEGMENT_STATE_READY
    message.segments.add(state=state, endpoints=[f"h:{port}"]).spec.CopyFrom(spec)


def anonymous(message: inventory_pb2.Node) -> None:
    message.gpus[0].uuid = ""


def stateless(message: inventory_pb2.Node) -> None:
    place = inventory_pb2.Placement(profile="1g.5gb")
    message.gpus[0].slices.add().placement.CopyFrom(place)
    message.segments.add().spec.CopyFrom(spec_message(placement=place))


def placeless(message: inventory_pb2.Node) -> None:
    state = inventory_pb2.SEGMENT_STATE_READY
    message.segments.add(state=state).spec.CopyFrom(spec_message())


def modelless(message: inventory_pb2.Node) -> None:
    spec = spec_message()
    spec.model = ""
    message.segments.add(state=inventory_pb2.SEGMENT_STATE_READY).spec.CopyFrom(spec)


def spec_message(**given: Any) -> inventory_pb2.SegmentSpec:
    return inventory_pb2.SegmentSpec(
        segment_id="s-1",
        model="digits",
        variant="small",
        batch_size=8,
        processes=1,
        gpu_uuid="GPU-a",
        **given,
    )


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (unnamed, "node.name"),
        (overlapping, "node.gpus"),
        (anonymous, "node.gpus.uuid"),
        (crowded, "node.gpus"),
        (endless, "node.gpus.type.profiles.starts"),
        (unpowered, "node.gpus.type.context_power_w"),
        *(
            (partial(with_port, port=port), "node.segments.endpoints")
            for port in ("", "http", "0", "65536", "9" * 5_000, "\u0663", "-1")
        ),
        (typeless, "node.gpus.type.name"),
        (profileless, "node.gpus.type.profiles"),
        (stateless, "node.segments.state"),
        (placeless, "node.segments.spec"),
        (modelless, "spec.model"),
    ],
)
def test_a_node_that_cannot_be_is_refused_by_field(
    spoil: Callable[[inventory_pb2.Node], None], field: str
) -> None:
    message = inventory_pb2.Node(name="node-a", gpus=[gpu_message()])
    spoil(message)

    with pytest.raises(InvalidArgument) as caught:
        node_from(message)
    assert caught.value.field == field


def test_gpus_of_a_type_share_it() -> None:
    """A fleet of thousands of GPUs has each type once: it is read once, and soon compared."""
    first, second = (
        node_from(inventory_pb2.Node(name=name, gpus=[gpu_message()])).gpus[0].type
        for name in ("node-a", "node-b")
    )

    assert first is second


def step(action: Action, grace_s: float) -> steps_pb2.Step:
    return step_to(NodeChange("1.1", "node-a", [[(action, grace_s)]], 60.0), 7)


def test_every_action_becomes_its_step() -> None:
    place, wire = Placement("1g.5gb", 3), inventory_pb2.Placement(profile="1g.5gb", start=3)
    (gpu,) = node_from(inventory_pb2.Node(name="node-a", gpus=[gpu_message()])).gpus
    pool = Pool(gpu.type, "Z", 1.0, 100.0)
    kind = SegmentKind("digits", "small", pool, "1g.5gb", 8, 2, 0.1, 1.0, 1.0, 0.9)
    segment = Segment("s-1", kind, "node-a", "GPU-a", place, 1.0)
    stop = step(StopSegment("s-1", "GPU-a"), 2.5)

    assert step(CreateSlice("GPU-a", place), 0).create_slice == steps_pb2.CreateSlice(
        gpu_uuid="GPU-a", placement=wire
    )
    assert step(DestroySlice("GPU-a", place), 0).destroy_slice == steps_pb2.DestroySlice(
        gpu_uuid="GPU-a", placement=wire
    )
    assert step(StartSegment(segment), 0).start_segment.spec == inventory_pb2.SegmentSpec(
        segment_id="s-1",
        model="digits",
        variant="small",
        batch_size=8,
        processes=2,
        gpu_uuid="GPU-a",
        placement=wire,
    )
    assert step(LockClock("GPU-a", 1005), 0).lock_clock == steps_pb2.LockClock(
        gpu_uuid="GPU-a", clock_mhz=1005
    )
    assert (stop.step_id, stop.stop_segment.segment_id) == ("1.1", "s-1")
    assert stop.stop_segment.grace.ToTimedelta().total_seconds() == 2.5


def test_actions_of_one_node_become_one_change_in_their_order() -> None:
    place, wire = Placement("1g.5gb", 3), inventory_pb2.Placement(profile="1g.5gb", start=3)
    stop, create = StopSegment("s-1", "GPU-a"), CreateSlice("GPU-a", place)

    groups: list[list[tuple[Action, float]]] = [
        [(stop, 2.5)],
        [(create, 0.0), (LockClock("GPU-a", 1005), 0.0)],
    ]
    step = step_to(NodeChange("1.1", "node-a", groups, 60.0), 7)

    first, second = step.change.groups
    assert (step.step_id, step.term) == ("1.1", 7)
    assert first.actions[0].stop_segment.grace.ToTimedelta().total_seconds() == 2.5
    assert [each.WhichOneof("action") for each in second.actions] == ["create_slice", "lock_clock"]
    assert second.actions[0].create_slice.placement == wire


def test_a_load_report_has_the_latency_at_the_slo_percentile_only() -> None:
    message = planner_pb2.ReportLoadRequest(router_id="r-1", routing_revision=4)
    message.window.FromMilliseconds(1500)
    message.models.add(model="digits", arrivals=30, answered=28).latency_s.update(
        {"95": 0.2, "99": 0.4}
    )
    message.models.add(model="other", answered=2)
    message.first_second = 1_700_000_000
    message.models[0].arrivals_per_s.extend([12, 18])
    report = load_from(message, {"digits": 95.0, "other": 99.5})

    assert (report.router_id, report.revision, report.window_s) == ("r-1", 4, 1.5)
    assert (report.arrivals, report.answered) == ({"digits": 30, "other": 0}, 30)
    assert report.latency_s == {"digits": 0.2}
    assert (report.first_second, report.arrivals_per_s) == (1_700_000_000, {"digits": [12, 18]})


def test_a_load_report_without_router_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="router_id: must have"):
        load_from(planner_pb2.ReportLoadRequest(), {})
