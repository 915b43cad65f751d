"""The nodes with which the planner plans, and when."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import (
    Placement,
    Segment,
    SegmentSpec,
    SegmentState,
    SliceProfile,
)
from cinquefoil.planner.v1.records import NodeOrder
from services.kit import config
from services.kit.errors import FailedPrecondition
from services.kit.mig import WHOLE, Geometry
from services.planner.core.fleet import (
    MAX_OWNED_GPUS,
    MAX_OWNED_SEGMENTS,
    Fleet,
    Node,
    NodeGpu,
    serves,
)
from services.planner.core.known_nodes import GpuPower, NodeRoutes
from services.planner.core.model import GpuType

WHOLE_KIND = SliceProfile(WHOLE, 0, 1, 1, (0,), 1, 40, 16 * 2**30)
T4 = GpuType("t4", Geometry(1, (WHOLE_KIND,)), 40, 10.0, 10.0, 70.0)
SETTINGS = {
    "a": config.Node(zone="Z", control=True, pue=1.2, orphan_timeout_s=60),
    "b": config.Node(zone="Z", control=True),
}


def node(name: str = "a", zone: str = "Z", *segments: Segment) -> Node:
    return Node(name, zone, (NodeGpu(f"GPU-{name}", T4, (Placement(WHOLE, 0),)),), segments)


def fleet() -> Fleet:
    return Fleet(SETTINGS, settle_s=2.0)


def test_nothing_is_planned_before_anybody_has_joined() -> None:
    """A planner without nodes waits."""
    assert fleet().unsettled_s(100.0) == math.inf


def test_planning_starts_when_all_nodes_have_joined() -> None:
    """The last node of the deployment ends the wait."""
    joined = fleet()
    joined.report(node("a"), 10.0)
    assert joined.unsettled_s(10.5) == 1.5
    joined.report(node("b"), 10.5)

    assert joined.unsettled_s(10.5) == 0.0


def test_planning_starts_without_late_nodes_when_the_first_has_waited_enough() -> None:
    """One node that is away does not stop the others."""
    joined = fleet()
    joined.report(node("a"), 10.0)

    assert joined.unsettled_s(12.0) == 0.0
    assert [each.name for each in joined.nodes(12.0)] == ["a"]


def test_a_node_that_comes_back_in_time_was_never_away() -> None:
    """A restarted agent must not cause a plan: its workers served on meanwhile."""
    joined = fleet()
    joined.report(node("a"), 0.0)
    joined.report(node("b"), 0.0)
    joined.leave("a", 100.0)
    assert joined.unsettled_s(105.0) == pytest.approx(5.0)
    assert [each.name for each in joined.nodes(105.0)] == ["a", "b"]
    joined.report(node("a"), 106.0)

    assert joined.unsettled_s(106.0) == 0.0


def leaving(name: str) -> Node:
    """Return a node whose agent announced its end."""
    found = node(name)
    return replace(found, gpus=tuple(replace(gpu, wanted=True) for gpu in found.gpus))


@pytest.mark.parametrize(
    ("announced_s", "waits_s"), [(99.9, 0.0), (100.5, 0.0), (103.0, 5.0)], ids=str
)
def test_a_leaving_node_waits_for_one_that_left_before_it_and_may_be_back(
    announced_s: float, waits_s: float
) -> None:
    """Agents restarted in turn come back; of those stopped together, none waits for another."""
    joined = fleet()
    joined.report(leaving("a"), 98.0)
    joined.report(node("b"), 98.0)
    for at_s in sorted((announced_s, 100.0)):
        if at_s == announced_s:
            joined.report(leaving("b"), at_s)
        else:
            joined.leave("a", at_s)
    joined.report(replace(leaving("b"), pue=1.3), 104.0)  # a later report moves nothing

    assert joined.takers_awaited_s("b", 105.0) == pytest.approx(waits_s)
    assert joined.takers_awaited_s("b", 110.0) == 0.0
    assert joined.unsettled_s(105.0) == pytest.approx(5.0)  # plans wait for it in any case


def test_a_leaving_node_does_not_wait_for_nodes_that_no_plan_may_use() -> None:
    """Neither for one that operators took out of use, nor for one without control."""
    joined = fleet()
    joined.report(node("a"), 0.0)
    joined.report(leaving("b"), 5.0)
    joined.leave("a", 6.0)
    assert joined.takers_awaited_s("b", 7.0) == pytest.approx(9.0)
    joined.order("a", NodeOrder(drain=True))
    assert joined.takers_awaited_s("b", 7.0) == 0.0


def test_a_node_that_stays_away_is_given_up_well_before_its_workers_end() -> None:
    """Its models are placed elsewhere while its workers still answer."""
    joined = fleet()
    joined.report(node("a"), 0.0)
    joined.report(node("b"), 0.0)
    joined.leave("a", 100.0)

    assert joined.unsettled_s(110.0) == 0.0
    assert [each.name for each in joined.nodes(110.0)] == ["b"]


def test_after_a_restart_the_nodes_of_the_plan_are_waited_for() -> None:
    """A planner that starts again gives the nodes of its plan time to join."""
    joined = fleet()
    joined.expect({"b": (), "unknown": ()}, 0.0)
    joined.report(node("a"), 1.0)
    assert joined.unsettled_s(5.0) == pytest.approx(5.0)
    assert joined.node("b") is None
    joined.report(node("b"), 6.0)

    assert joined.unsettled_s(6.0) == 0.0
    assert joined.node("b") is not None


def test_a_fleet_that_is_coming_back_is_waited_for_within_bounds() -> None:
    """Plans without half of a fleet that serves would be made, and the rest return to them."""
    names = [str(n) for n in range(8)]
    settings = {n: config.Node(zone="Z", control=True, orphan_timeout_s=60) for n in names}
    joined, until_s = Fleet(settings, settle_s=0.0), []
    joined.expect(dict.fromkeys(names, ()), 0.0)
    for number, name in enumerate(names[:-1]):
        joined.report(node(name), 6.0 * number)
        until_s.append(6.0 * number + joined.unsettled_s(6.0 * number))

    assert until_s == [10.0, 16.0, 22.0, 28.0, 30.0, 30.0, 36.0]


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (node("c"), "'c' is not in the deployment file; it has a, b"),
        (node("a", "Y"), "the deployment file has a in Z, not in 'Y'"),
    ],
)
def test_nodes_that_the_deployment_does_not_name_are_refused(report: Node, message: str) -> None:
    """Only nodes of the deployment may join."""
    with pytest.raises(FailedPrecondition, match=message):
        fleet().report(report, 0.0)


def running(segment_id: str, gpu: str) -> Segment:
    spec = SegmentSpec(segment_id, "digits", "small", 8, 1, gpu, Placement(WHOLE, 0))
    return Segment(spec, SegmentState.READY, ("h:1",))


def test_a_node_does_not_speak_for_anothers_segments_and_gpus() -> None:
    """Requests for the segment would go to its own workers, and its energy would be forged."""
    joined = fleet()
    joined.report(node("a", "Z", running("s-1", "GPU-a")), 0.0)
    stolen_gpu = replace(node("b"), gpus=node("a").gpus)
    for _ in range(2):
        for stolen in (node("b", "Z", running("s-1", "GPU-b")), stolen_gpu):
            with pytest.raises(FailedPrecondition, match="is of node a"):
                joined.report(stolen, 0.0)
        joined.leave("a", 1.0)  # its agent restarts

    assert joined.segments()["s-1"].spec.gpu_uuid == "GPU-a"


@given(st.lists(st.sampled_from(["back", "empty", "away", "restart", "claim"]), max_size=12))
def test_a_node_gets_back_what_is_its_own_whatever_another_claims_meanwhile(
    events: list[str],
) -> None:
    """Another claims its GPU and segment: while it is away, has none yet, or a planner restarts."""
    now = fleet()
    honest = node("a", "Z", running("s-1", "GPU-a"))
    now.report(honest, 0.0)
    for at_s, event in enumerate(events, 1):
        if event == "restart":
            kept, now = now.owners, fleet()
            now.owners = dict(kept)
            now.expect({"a": ["s-1"]}, at_s)
        elif event == "away":
            now.leave("a", at_s)
        elif event == "claim":
            stolen_gpu = replace(node("b"), gpus=node("a").gpus)
            for stolen in (node("b", "Z", running("s-1", "GPU-b")), stolen_gpu):
                with pytest.raises(FailedPrecondition, match="is of node a"):
                    now.report(stolen, at_s)
        else:
            now.report(honest if event == "back" else node("a"), at_s)
    now.report(honest, 99.0)

    assert now.segments()["s-1"].spec.gpu_uuid == "GPU-a"


def test_a_node_that_reports_ever_new_segments_keeps_its_latest() -> None:
    """The planner keeps whose each segment is, and no agent makes it keep them without end."""
    joined = fleet()
    for number in range(MAX_OWNED_SEGMENTS + 1):
        joined.report(node("a", "Z", running(f"s-{number}", "GPU-a")), 0.0)

    joined.report(node("b", "Z", running("s-0", "GPU-b")), 0.0)
    with pytest.raises(FailedPrecondition, match="s-1 is of node a"):
        joined.report(node("b", "Z", running("s-1", "GPU-b")), 0.0)


def test_a_gpu_is_its_nodes_until_that_is_forgotten() -> None:
    """The refusal names the GPU, its owner and the command; then the card may have moved."""
    joined = fleet()
    joined.report(node("a"), 0.0)
    joined.leave("a", 1.0)
    moved = replace(node("b"), gpus=node("a").gpus)
    with pytest.raises(FailedPrecondition, match=r"GPU-a is of node a.*nodes forget a"):
        joined.report(moved, 2.0)
    assert joined.disown("a")
    joined.report(moved, 3.0)
    assert joined.owners == {"GPU-a": "b"}
    assert not joined.disown("a")


def test_a_node_that_reports_ever_new_gpus_is_refused() -> None:
    """The planner keeps whose each GPU is, and no agent makes it keep them without end."""
    joined, (gpu,) = fleet(), node("a").gpus
    for number in range(MAX_OWNED_GPUS):
        joined.report(replace(node("a"), gpus=(replace(gpu, uuid=f"GPU-{number}"),)), 0.0)

    with pytest.raises(FailedPrecondition, match=r"more than 1024 different GPUs.*nodes forget a"):
        joined.report(replace(node("a"), gpus=(replace(gpu, uuid="GPU-new"),)), 0.0)
    assert len(joined.owners) == MAX_OWNED_GPUS
    joined.report(replace(node("a"), gpus=(replace(gpu, uuid="GPU-0"),)), 0.0)


def test_gpus_carry_zone_pue_and_intensity() -> None:
    """A plan weighs each GPU by the carbon of its place."""
    joined = fleet()
    joined.report(node("a"), 0.0)

    (gpu,) = joined.gpus({"Z": 200.0}, 0.0)

    assert (gpu.uuid, gpu.node, gpu.slices) == ("GPU-a", "a", (Placement(WHOLE, 0),))
    assert gpu.pool.carbon_gco2e(3.6e6) == pytest.approx(240.0)


def test_gpus_of_a_pool_share_it() -> None:
    """Thousands of GPUs are counted by pool: one that is the same object is soon compared."""
    settings = {name: config.Node(zone="Z", control=True) for name in "ab"}
    joined = Fleet(settings, settle_s=0.0)
    for name in settings:
        joined.report(node(name), 0.0)
    first, second = joined.gpus({"Z": 200.0}, 0.0)

    assert first.pool is second.pool


def test_routes_depend_on_nodes_that_run_something_only() -> None:
    """A thousand nodes that join do not have the routing table made a thousand times."""
    joined = fleet()
    joined.report(node("a"), 0.0)
    joined.leave("a", 1.0)
    joined.report(node("a"), 2.0)
    assert joined.routed_revision == 0

    joined.report(node("a", "Z", running("s-1", "GPU-a")), 3.0)
    moved = replace(running("s-1", "GPU-a"), endpoints=("h:2",))
    joined.report(node("a", "Z", moved), 4.0)
    assert joined.routed_revision == 2
    assert (joined.rerouted(0), joined.rerouted(2)) == (["a"], [])
    joined.configure(SETTINGS)
    assert joined.rerouted(2) is None  # of any


def test_a_changed_pue_is_in_the_routes_of_nodes_that_reported_before() -> None:
    """A reload of the deployment file does not wait for the agents' next reports."""
    joined = fleet()
    joined.report(node("a", "Z", running("s-1", "GPU-a")), 0.0)
    joined.configure({**SETTINGS, "a": SETTINGS["a"].model_copy(update={"pue": 1.4})})

    routed = joined.routed("a")
    assert routed is not None
    assert routed.pue == 1.4


@pytest.mark.parametrize(
    ("reported", "changes"),
    [
        (("s-1", "h:1", 1.2), 0),
        (("s-2", "h:1", 1.2), 1),
        (("s-1", "h:2", 1.2), 1),
        (("s-1", "h:1", 1.3), 1),
        (None, 1),
    ],
)
def test_a_node_that_comes_back_as_the_stored_routes_have_it_changes_none(
    reported: tuple[str, str, float] | None, changes: int
) -> None:
    """A thousand nodes that return to the next leader do not have its table made again."""
    joined = fleet()
    stored = NodeRoutes({"s-1": ("h:1",)}, 1.2, {"GPU-b": GpuPower(T4.idle_power_w, 70.0)})
    joined.expect({"b": ["s-1"]}, 0.0, {"b": stored})
    back = node("b")
    if reported is not None:
        segment_id, endpoint, pue = reported
        run = replace(running(segment_id, "GPU-b"), endpoints=(endpoint,))
        back = replace(back, segments=(run,), pue=pue)
    joined.report(back, 1.0)

    assert joined.node("b") is not None
    assert joined.routed_revision == changes


@pytest.mark.parametrize("state", SegmentState)
def test_only_segments_with_workers_that_answer_serve(state: SegmentState) -> None:
    """No request is routed to a segment that loads or failed."""
    spec = SegmentSpec("s-1", "digits", "small", 8, 1, "GPU-a", Placement(WHOLE, 0))
    answering = {SegmentState.READY, SegmentState.DEGRADED}

    assert serves(Segment(spec, state, ("h:1",))) == (state in answering)
    assert not serves(Segment(spec, state, ()))


def test_a_node_that_may_only_be_read_is_not_planned_with() -> None:
    """Real GPUs are read-only until control is granted: no step could be carried out there."""
    settings = SETTINGS | {"a": config.Node(zone="Z", control=False)}
    joined = Fleet(settings, settle_s=2.0)
    joined.report(node("a"), 0.0)
    joined.report(node("b"), 0.0)

    assert [each.name for each in joined.nodes(0.0)] == ["b"]
    assert joined.node("a") is not None


def test_a_node_leaves_when_all_its_gpus_are_wanted_and_another_may_take_over() -> None:
    """A node leaves once every GPU of it is wanted back; one that stays can take over."""
    joined = fleet()
    joined.report(leaving("a"), 0.0)
    assert (joined.leaves("a"), joined.takes_over("a", 0.0)) == (True, False)
    joined.report(node("b"), 0.0)

    assert (joined.leaves("b"), joined.takes_over("a", 0.0)) == (False, True)
