"""Conditions of the cluster: what reports say is wrong with nodes, zones and variants."""

from datetime import UTC, datetime

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.gpuagent.v1.records import (
    Placement,
    Segment,
    SegmentSpec,
    SegmentState,
    SliceProfile,
)
from services.kit import config
from services.kit.config import Objective
from services.kit.mig import WHOLE, Geometry
from services.planner.change_event import ChangeEvent
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.conditions import cluster_conditions
from services.planner.core.fleet import Fleet, Node, NodeGpu
from services.planner.core.forecast.demand import Demand
from services.planner.core.forecast.text_lengths import TextLength
from services.planner.core.grid_signal import LastIntensity
from services.planner.core.model import GpuType
from services.planner.core.service_level import ServiceLevel
from tests.support.virtual_clock import VirtualClock

SPEC = SegmentSpec("s-1", "digits", "large", 8, 1, "GPU-a", Placement(WHOLE, 0))
T4 = GpuType(
    "t4", Geometry(1, (SliceProfile(WHOLE, 0, 1, 1, (0,), 1, 40, 2**34),)), 40, 10.0, 10.0, 70.0
)
GPU = NodeGpu("GPU-a", T4, (Placement(WHOLE, 0),))


def state(*, control: bool = True) -> ClusterState:
    nodes = {"a": config.Node(zone="Z", control=control)}
    clock = VirtualClock(datetime(2026, 6, 1, tzinfo=UTC))
    demand, level = Demand({}, now_s=clock.monotonic), ServiceLevel({})
    changed = ChangeEvent()
    return ClusterState(clock, changed, (), Fleet(nodes, 0.0), demand, level, Objective(), "exact")


def working(*segments: Segment, conditions: tuple[Condition, ...] = ()) -> ClusterState:
    """A cluster in which all is well, but for what is given."""
    seen = state()
    seen.fleet.report(Node("a", "Z", (GPU,), segments, conditions=conditions), 0.0)
    seen.update_intensity({"Z": 100.0}, {}, {"Z": "measured"})
    return seen


def found(seen: ClusterState) -> list[tuple[str, str, str]]:
    return [(each.kind.name, each.subject, each.setting) for each in cluster_conditions(seen)]


def test_a_cluster_that_works_has_no_condition() -> None:
    assert found(working()) == []


def test_a_node_that_may_only_be_read_names_the_setting_before_it_has_joined() -> None:
    assert ("CONTROL_OFF", "node/a", "nodes.a.control") in found(state(control=False))


def test_nodes_and_zones_are_awaited_by_name() -> None:
    assert found(state()) == [
        ("NODE_AWAY", "node/a", ""),
        ("ZONE_UNKNOWN", "zone/Z", "carbon.zones.Z"),
    ]


def test_a_node_that_left_is_away_again() -> None:
    seen = working()
    seen.fleet.leave("a", 1.0)

    assert found(seen) == [("NODE_AWAY", "node/a", "")]


def test_a_node_whose_agent_hangs_is_away_while_its_stream_is_open() -> None:
    """A stopped process keeps its connection for as long as keepalive waits."""
    seen = working()
    seen.silent = lambda: ["a"]

    assert found(seen) == [("NODE_AWAY", "node/a", "")]


def test_an_intensity_without_a_source_is_stale() -> None:
    seen = working()
    seen.update_intensity({"Z": 100.0}, {}, {"Z": "held"})

    assert found(seen) == [("INTENSITY_STALE", "zone/Z", "carbon.zones.Z")]


def test_the_intensity_grows_old_while_the_carbon_service_is_away() -> None:
    seen = working()
    seen.update_intensity({"Z": 100.0})
    seen.lose_carbon()
    assert found(seen) == [("INTENSITY_STALE", "zone/Z", "carbon.address")]
    seen.update_intensity({"Z": 100.0})

    assert not found(seen)


def test_an_intensity_from_before_a_switch_over_is_stale_and_names_where_carbon_is() -> None:
    """Its sentence says of when it is."""
    seen = state()
    seen.fleet.report(Node("a", "Z", (GPU,), ()), 0.0)
    seen.recall_intensity({"Z": LastIntensity(100.0, datetime(2026, 5, 31, 23, 30, tzinfo=UTC))})

    (condition,) = cluster_conditions(seen)
    assert found(seen) == [("INTENSITY_STALE", "zone/Z", "carbon.address")]
    assert "of 2026-05-31 23:30 UTC" in condition.sentence
    assert seen.signal.staleness_s(0.0) == {"Z": 1800.0}


def test_an_intensity_that_was_never_known_is_awaited_and_then_assumed() -> None:
    """The condition changes from one that waits to one that degrades, and says the value."""

    def joined_at(now_s: float) -> ClusterState:
        seen = state()
        seen.assumed_gco2e_per_kwh = {"Z": 473.0}
        seen.fleet.report(Node("a", "Z", (GPU,), ()), now_s)
        return seen

    waits, assumes = joined_at(-2.0), joined_at(-5.0)
    assert found(waits) == [("ZONE_UNKNOWN", "zone/Z", "carbon.zones.Z")]
    assert waits.unsettled_s() == 3.0
    (condition,) = cluster_conditions(assumes)
    assert found(assumes) == [("INTENSITY_STALE", "zone/Z", "carbon.address")]
    assert "plans assume 473 gCO2e/kWh" in condition.sentence
    assert assumes.intensity_for_plans() == {"Z": 473.0}
    assert assumes.intensity_gco2e_per_kwh == {}, "the account waits for the known one"


def test_a_node_without_gpus_says_so() -> None:
    seen = working()
    seen.fleet.report(Node("a", "Z", (), ()), 1.0)

    assert found(seen) == [("GPU_MISSING", "node/a", "nodes.a.gpus")]


def test_what_agents_find_is_passed_on() -> None:
    full = Condition(ConditionKind.DISK_FULL, "node/a", "little is free", "nodes.a.state_dir")

    assert found(working(conditions=(full,))) == [("DISK_FULL", "node/a", "nodes.a.state_dir")]


def test_a_worker_that_fails_is_a_condition_of_its_variant() -> None:
    failing = Segment(SPEC, SegmentState.DEGRADED, ("h:1",), reason="ended with status 1")

    assert found(working(failing)) == [("WORKER_FAILING", "variant/digits/large", "")]


def test_a_variant_that_was_given_up_keeps_its_reason_after_its_segment_has_gone() -> None:
    seen = working()
    lost = Segment(SPEC, SegmentState.QUARANTINED, (), reason="cannot load the model")
    seen.blocklist.learn([lost], 0.0)

    (condition,) = cluster_conditions(seen)
    assert condition.kind is ConditionKind.QUARANTINED
    assert "cannot load the model" in condition.sentence


def test_texts_that_cannot_be_in_time_are_named_with_those_that_could() -> None:
    seen = working()
    seen.lengths.usual = {"chat": TextLength(200.0, 9000.0)}
    seen.settle_texts(seen.lengths.usual, {"chat": TextLength(200.0, 40.0)}, ())

    (condition,) = cluster_conditions(seen)
    assert condition.kind is ConditionKind.TEXTS_TOO_LONG
    assert "200 + 9000 tokens" in condition.sentence
    assert "more time, by as much as they exceed 200 + 40 tokens" in condition.sentence

    seen.settle_texts(seen.lengths.usual, seen.lengths.promised, (), ["chat"])

    (condition,) = cluster_conditions(seen)
    assert "plans are made for 200 + 40 tokens" in condition.sentence
