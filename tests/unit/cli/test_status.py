"""`cinquefoil status`: what a person must know is there in words."""

from datetime import UTC, datetime, timedelta
from io import StringIO

from rich.console import Console

from cinquefoil.gpuagent.v1 import inventory_pb2 as pb
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.router.v1 import router_pb2
from services.cli.status.document import Row, document, gpus_of
from services.cli.status.render import gpu_table, render
from services.kit.conditions import control_off
from services.kit.rpc.condition_messages import condition_messages
from services.planner.core.maintenance import Freeze, Held, hold
from services.planner.core.plan import Pin


def _status(*nodes: planner_pb2.FleetNode, plan: plan_pb2.Plan | None = None) -> Row:
    return document(fleet=planner_pb2.GetFleetResponse(nodes=nodes), plan=plan)


def _shown(*segments: pb.Segment) -> str:
    gpu = pb.Gpu(uuid="GPU-1", type=pb.GpuType(name="a100-40gb"))
    for start in (0, 4):
        gpu.slices.add(placement=pb.Placement(profile="3g.20gb", start=start))
    fleet = planner_pb2.FleetNode(node=pb.Node(name="rack-7", gpus=[gpu], segments=segments))
    console = Console(width=200, file=StringIO(), record=True)
    console.print(render(_status(fleet)))
    return console.export_text()


def _segment(
    start: int, state: pb.SegmentState.ValueType, reason: str, stage: int = 0
) -> pb.Segment:
    placement = pb.Placement(profile="3g.20gb", start=start)
    spec = pb.SegmentSpec(
        model="digits", variant="large", gpu_uuid="GPU-1", placement=placement, stage=stage
    )
    return pb.Segment(spec=spec, state=state, reason=reason)


def test_an_id_and_a_place_are_whole_in_80_columns_beside_names_of_any_length() -> None:
    """Commands take them."""
    spec = pb.SegmentSpec(
        segment_id="s-cca35a956a9e",
        model="sentence-embeddings.multilingual-minilm-l12-v2",
        variant="int8-dynamic",
        gpu_uuid="GPU-1",
        placement=pb.Placement(profile="3g.20gb", start=4),
    )
    gpu = pb.Gpu(uuid="GPU-1", type=pb.GpuType(name="a100-40gb"))
    gpu.slices.add(placement=spec.placement)
    node = pb.Node(name="gpu-pool-eu-west.example-17", gpus=[gpu])
    node.segments.add(spec=spec, state=pb.SEGMENT_STATE_DEGRADED)
    text = StringIO()
    found = [*gpus_of(planner_pb2.FleetNode(node=node, connected=True))]
    Console(width=80, file=text).print(gpu_table(found, detailed=True))

    assert {"s-cca35a956a9e", "3g.20gb@4", "degraded"} <= {*text.getvalue().split()}


def test_a_condition_is_a_line_with_the_setting_that_changes_it() -> None:
    found = condition_messages([control_off("rack-7")])
    status = document(fleet=planner_pb2.GetFleetResponse(conditions=found))
    console = Console(width=200, file=StringIO(), record=True)
    console.print(render(status))

    assert (
        "CONTROL_OFF node/rack-7: the agent of rack-7 only reads its node, so no plan uses its "
        "GPUs (setting: nodes.rack-7.control; run: cinquefoil gpuagent serve --node rack-7)"
    ) in console.export_text()


def test_each_node_shows_its_pue_and_whether_it_was_measured() -> None:
    nodes = [
        planner_pb2.FleetNode(node=pb.Node(name="rack-7", pue=1.31), pue=1.31),
        planner_pb2.FleetNode(node=pb.Node(name="rack-8"), pue=1.1),
    ]
    console = Console(width=200, file=StringIO(), record=True)
    console.print(render(_status(*nodes)))

    assert "PUE: rack-7 1.31 (measured), rack-8 1.10" in console.export_text()


def test_segments_that_are_well_need_no_words() -> None:
    text = _shown(_segment(0, pb.SEGMENT_STATE_READY, ""))
    assert "digits" not in text.replace("digits/large", "")
    assert "stage" not in text


def test_every_stage_of_a_pipeline_is_named_the_first_too() -> None:
    text = _shown(*(_segment(4 * stage, pb.SEGMENT_STATE_READY, "", stage) for stage in (0, 1)))
    assert "digits/large stage\N{NO-BREAK SPACE}0" in text
    assert "digits/large stage\N{NO-BREAK SPACE}1" in text


def test_gpus_that_the_plan_leaves_empty_are_named_with_what_they_draw() -> None:
    node = planner_pb2.FleetNode(
        node=pb.Node(
            name="rack-7", gpus=[pb.Gpu(index=index, uuid=f"GPU-{index}") for index in range(3)]
        ),
        energy=[pb.GpuEnergy(gpu_uuid=f"GPU-{index}", power_w=30 + index) for index in range(3)],
    )
    plan = plan_pb2.Plan(
        version=3,
        prediction=plan_pb2.Prediction(
            parked_gpus=("GPU-1", "GPU-2", "GPU-9"),
            empty_nodes=("rack-7",),
            wanted_gpus={"t4": 5, "a100-40gb": 1},
        ),
    )
    console = Console(width=200, file=StringIO(), record=True)
    console.print(render(_status(node, plan=plan)))

    shown = console.export_text()
    assert "parked: rack-7/1, rack-7/2; 63 W, which could be switched off" in shown
    assert "empty nodes: rack-7" in shown
    assert "wanted to serve all: 1 x a100-40gb or 5 x t4" in shown


def test_a_hold_on_plans_is_a_line_with_operator_times_and_the_command_that_ends_it() -> None:
    at = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)
    freeze = Freeze(at, "sales", "ada", at - timedelta(hours=2))
    held = Held(Pin(7, "bob"), None, freeze, hold(freeze, (), at - timedelta(hours=1)))
    found = condition_messages(held.conditions(["text"]))
    console = Console(width=300, file=StringIO(), record=True)
    console.print(render(document(fleet=planner_pb2.GetFleetResponse(conditions=found))))
    shown = console.export_text()

    assert (
        "FROZEN plan: plans are frozen by ada since 2027-01-15 06:00 UTC (sales): only lost "
        "capacity is replaced until 2027-01-15 08:00 UTC (run: cinquefoil plan unfreeze)"
    ) in shown
    assert (
        "PLAN_HELD model/text: the plan has no segment of text, and gets none until it is "
        "unpinned: plan 7 is pinned by bob (run: cinquefoil plan unpin)"
    ) in shown


def test_a_language_model_has_a_line_with_its_tokens_and_what_each_took() -> None:
    text = router_pb2.ModelStatus(
        model="chat", energy_j=50.0, carbon_gco2e=0.005, input_tokens=40, output_tokens=100,
        output_tokens_per_s=12.5, idle_energy_j=170.0, carbon_total_gco2e=0.022,
    )  # fmt: skip
    models = [text, router_pb2.ModelStatus(model="digits", energy_j=50.0)]
    status = document(router=router_pb2.GetStatusResponse(models=models))
    console = Console(width=200, file=StringIO(), record=True)
    console.print(render(status))

    shown = console.export_text()
    each = "of each of the latter 0.5 J active, 2.2 J with idle, 220 µgCO2e"
    assert f"tokens of chat: 12.5/s; 40 in, 100 out; {each}" in shown
    assert "tokens of digits" not in shown


def test_requests_that_can_wait_have_a_line_with_what_holds_them_and_what_they_added() -> None:
    its = router_pb2.WaitingStatus(
        queued=12, in_flight=3, room=8, answered=40, energy_j=80.0, marginal_energy_j=20.0,
        held_by="interactive requests leave no room",
    )  # fmt: skip
    models = [router_pb2.ModelStatus(model="chat", waiting=its), router_pb2.ModelStatus(model="d")]
    status = document(router=router_pb2.GetStatusResponse(models=models))
    console = Console(width=200, file=StringIO(), record=True)
    console.print(render(status))

    shown = console.export_text()
    assert "that can wait: 12 queued (interactive requests leave no room), 3 of 8 run" in shown
    assert "40 answered; 80 J, of which 20 J" in shown
    assert "requests of d that" not in shown


def test_planners_are_named_by_address_and_a_missing_standby_is_a_warning() -> None:
    """No plan is missed either where others' servers answer every model."""

    def shown(**planners: str) -> str:
        leader = planner_pb2.Leader(holder="a:1", term=3)
        fleet = planner_pb2.GetFleetResponse(leader=leader, plans_nothing=True)
        console = Console(width=200, file=StringIO(), record=True)
        console.print(render(document(fleet=fleet, planners=planners)))
        return console.export_text()

    assert "planners: a leads, b stands by\n" in shown(a="leads", b="stands by")
    assert "planners: a leads, b is away: none stands by" in shown(a="leads", b="is away")
    assert "planners" not in shown()
    assert "no plan: others' servers answer every model" in shown()


def test_services_that_read_different_deployment_files_are_distinguished() -> None:
    def shown(*digests: str) -> str:
        own, planner, *agents = digests
        fleet = planner_pb2.GetFleetResponse(config_digest=planner)
        for number, digest in enumerate(agents):
            fleet.nodes.add(node=pb.Node(name=f"rack-{number}"), config_digest=digest)
        console = Console(width=200, file=StringIO(), record=True)
        console.print(render(document(fleet=fleet, file=own)))
        return console.export_text()

    assert "differ: this command a, planner a, rack-0 a, rack-1 b; " in shown("a", "a", "a", "b")
    assert "differ: this command b, planner a, rack-0 a; SIGHUP" in shown("b", "a", "a")
    assert "differ" not in shown("a", "a", "a", "a")
