"""From segments that serve to a routing table."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from cinquefoil.planner.v1.records import ModelRoutes, PlannedSegment, RoutingTable
from services.kit.config import AnalyticProfile, Carbon, Deployment, Model, Node, Slo, Variant, Zone
from services.kit.config.carbon_sources import StaticSource
from services.planner.core.known_nodes import GpuPower, NodeRoutes
from services.planner.core.routing_table import Places, by_capacity, routes

PROFILE = AnalyticProfile(kind="analytic", gmacs_per_item=1.0)
DEPLOYMENT = Deployment(
    version="v1",
    carbon=Carbon(
        zones={"Z": Zone(source=StaticSource(kind="static", intensity_gco2e_per_kwh=100))}
    ),
    nodes={"node-a": Node(zone="Z", pue=1.3)},
    models={
        "digits": Model(
            slo=Slo(latency_s=0.2),
            demand_rps=60,
            variants={
                "small": Variant(file=Path("small.onnx"), accuracy=0.9, profile=PROFILE),
                "large": Variant(file=Path("large.onnx"), accuracy=0.99, profile=PROFILE),
            },
        ),
        "idle": Model(
            slo=Slo(latency_s=1),
            demand_rps=1,
            variants={"only": Variant(file=Path("only.onnx"), accuracy=0.5, profile=PROFILE)},
        ),
    },
)


def segment(
    number: int, share: float, *, variant: str = "small", throughput_rps: float = 100.0
) -> PlannedSegment:
    placement = Placement("1g.5gb", number)
    spec = SegmentSpec(f"s-{number}", "digits", variant, 8, 2, "GPU-a", placement)
    return PlannedSegment(spec, "node-a", share, throughput_rps, 0.02)


def routed(
    segments: Iterable[PlannedSegment],
    endpoints: Mapping[str, tuple[str, ...]],
    pue: float = 1.2,
) -> tuple[ModelRoutes, ...]:
    """Return the routes where the agent of node-a has reported these workers."""
    reported = {"node-a": NodeRoutes(endpoints, pue, {"GPU-a": GpuPower(55.0, 300.0)})}
    return routes(DEPLOYMENT, segments, reported.get)


def test_a_worker_is_described_in_full() -> None:
    digits, _ = routed([segment(1, 1.0, variant="large")], {"s-1": ("h:1", "h:2")})

    assert (digits.accuracy_unit, digits.slo_latency_s, digits.slo_percentile) == ("top-1", 0.2, 95)
    assert digits.instance_choice == "shares"
    first, second = digits.instances
    assert (first.endpoint, second.endpoint) == ("h:1", "h:2")
    assert (first.segment_id, first.variant, first.accuracy) == ("s-1", "large", 0.99)
    assert (first.credits, first.zone, first.pue, first.share) == (8, "Z", 1.2, 0.5)


def test_what_agents_report_of_their_hardware_goes_to_routers() -> None:
    digits, _ = routed([segment(1, 1.0)], {"s-1": ("h:1",)}, pue=1.5)

    (found,) = digits.instances
    assert (found.pue, found.gpu_idle_power_w, found.power_limit_w) == (1.5, 55.0, 300.0)


def test_models_without_instances_are_listed_too() -> None:
    assert [each.model for each in routed((), {})] == ["digits", "idle"]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), max_size=8),
)
def test_shares_sum_to_one_whatever_serves(segments: list[tuple[float, int]]) -> None:
    """Segments without workers leave their share to the others; no worker, no instance."""
    planned = [segment(number, share) for number, (share, _) in enumerate(segments)]
    endpoints = {
        f"s-{number}": tuple(f"h:{number}{worker}" for worker in range(workers))
        for number, (_, workers) in enumerate(segments)
    }
    digits, _ = routed(planned, endpoints)

    assert len(digits.instances) == sum(workers for _, workers in segments)
    if digits.instances:
        assert sum(instance.share for instance in digits.instances) == pytest.approx(1.0)


def test_a_missing_segment_leaves_the_others_in_proportion() -> None:
    planned = [segment(1, 0.5), segment(2, 0.3), segment(3, 0.2)]
    digits, _ = routed(planned, {"s-2": ("h:2",), "s-3": ("h:3",)})

    assert [each.share for each in digits.instances] == pytest.approx([0.6, 0.4])


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=6))
def test_by_capacity_gives_every_segment_the_same_utilisation(capacities: list[float]) -> None:
    planned = [segment(n, 0.0, throughput_rps=each) for n, each in enumerate(capacities)]
    load = defaultdict(float)
    for each in by_capacity(planned):
        load[each.spec.segment_id] = each.share / each.throughput_rps

    assert list(load.values()) == pytest.approx([1 / sum(capacities)] * len(capacities))


def test_unknown_capacities_are_equal_and_a_variant_the_file_lacks_gets_nothing() -> None:
    planned = by_capacity(
        [
            segment(1, 0.0, throughput_rps=0.0),
            segment(2, 0.0, throughput_rps=0.0),
            segment(3, 0.0, throughput_rps=0.0, variant="removed"),
        ]
    )
    digits, _ = routed(planned, {f"s-{n}": (f"h:{n}",) for n in (1, 2, 3)})

    assert [(each.segment_id, each.share) for each in digits.instances] == [
        ("s-1", 0.5),
        ("s-2", 0.5),
    ]


SERVING = [segment(1, 0.25), segment(2, 0.25), segment(3, 0.5, variant="large")]
BEFORE = {"s-1": ("h:1", "h:2"), "s-3": ("h:3",)}


def made(revision: int, endpoints: dict[str, tuple[str, ...]]) -> RoutingTable:
    return RoutingTable(revision, 1, routed(SERVING, endpoints), 4)


@pytest.mark.parametrize(
    "now",
    [BEFORE, {**BEFORE, "s-1": ("h:1", "h:9")}, {"s-1": ("h:8", "h:9"), "s-3": ("g:3",)}],
)
def test_workers_that_move_are_found_in_the_table_that_there_is(
    now: dict[str, tuple[str, ...]],
) -> None:
    """The moved table equals one built from scratch, twice in a row."""
    table = made(7, BEFORE)
    places = Places(table, SERVING)
    moved = places.moved({"node-a": NodeRoutes(now, 1.2, {"GPU-a": GpuPower(55.0, 300.0)})})
    assert moved == made(7 + (now != BEFORE), now)
    back = places.moved({"node-a": NodeRoutes(BEFORE, 1.2, {"GPU-a": GpuPower(55.0, 300.0)})})

    assert moved is not None
    assert back == made(moved.revision + (now != BEFORE), BEFORE)
    assert (moved is table) == (now == BEFORE)


@pytest.mark.parametrize(
    "now",
    [
        None,
        NodeRoutes({"s-1": ("h:1",), "s-3": ("h:3",)}, 1.2, {"GPU-a": GpuPower(55.0, 300.0)}),
        NodeRoutes({**BEFORE, "s-2": ("h:4",)}, 1.2, {"GPU-a": GpuPower(55.0, 300.0)}),
        NodeRoutes(BEFORE, 1.3, {"GPU-a": GpuPower(55.0, 300.0)}),
        NodeRoutes(BEFORE, 1.2, {"GPU-a": GpuPower(54.0, 300.0)}),
        NodeRoutes(BEFORE, 1.2, {"GPU-a": GpuPower(55.0, 250.0)}),
    ],
)
def test_what_changes_shares_or_hardware_is_no_move(now: NodeRoutes | None) -> None:
    """The table is rebuilt."""
    places = Places(made(7, BEFORE), SERVING)

    assert places.moved({"node-a": now}) is None
    assert places.moved({"node-b": NodeRoutes(BEFORE, 1.2, {})}) is None
    assert places.moved({"node-b": None}) == made(7, BEFORE)
