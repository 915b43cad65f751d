"""A plan's configuration graph, as `cinquefoil plan graph` exports it."""

import io
import json

import networkx as nx

from cinquefoil.gpuagent.v1 import inventory_pb2 as inventory
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.plan.graph import as_dot, as_graphml, as_json, graph_of

NODES = [
    planner_pb2.FleetNode(
        node=inventory.Node(
            name="n0",
            zone="DE",
            gpus=[inventory.Gpu(uuid=f"GPU-{n}", type=inventory.GpuType(name="a30")) for n in "ab"],
        ),
        pue=1.25,
    )
]


def segment(gpu: str, variant: str, profile: str, share: float) -> plan_pb2.PlannedSegment:
    spec = inventory.SegmentSpec(
        model="digits",
        variant=variant,
        batch_size=8,
        processes=2,
        gpu_uuid=gpu,
        placement=inventory.Placement(profile=profile),
    )
    return plan_pb2.PlannedSegment(spec=spec, node="n0", share=share)


PLAN = plan_pb2.Plan(
    version=3,
    segments=[
        segment("GPU-a", "small", "1g.6gb", 0.25),
        segment("GPU-a", "small", "1g.6gb", 0.25),
        segment("GPU-b", "small", "1g.6gb", 0.2),
        segment("GPU-b", "large", "2g.12gb", 0.3),
    ],
    clocks_mhz={"GPU-b": 900},
)


def test_edges_count_segments_and_sum_shares() -> None:
    """Segments of one kind are one edge; another clock of their GPU is another edge."""
    found = sorted(
        (start.variant, end.profile, edge.clock_mhz, data["weight"], round(data["share"], 9))
        for start, end, edge, data in graph_of(PLAN, NODES).edges(keys=True, data=True)
    )
    assert found == [
        ("large", "2g.12gb", 900, 1, 0.3),
        ("small", "1g.6gb", 0, 2, 0.5),
        ("small", "1g.6gb", 900, 1, 0.2),
    ]


def test_exports_are_read_back_as_the_same_graph() -> None:
    graph = graph_of(PLAN, NODES)
    document = nx.node_link_graph(json.loads(as_json(graph)), edges="edges")
    graphml = nx.read_graphml(io.BytesIO(as_graphml(graph).encode()), force_multigraph=True)

    for copy in (document, graphml):
        assert set(copy) == {
            "digits/small",
            "digits/large",
            "1g.6gb of a30, DE, PUE 1.25",
            "2g.12gb of a30, DE, PUE 1.25",
        }
        assert copy.size(weight="weight") == len(PLAN.segments)
    assert as_dot(graph).count("->") == graph.number_of_edges()


def test_a_gpu_that_left_and_an_empty_plan_have_graphs_too() -> None:
    assert "unknown" in as_json(graph_of(PLAN, []))
    assert not graph_of(plan_pb2.Plan(), NODES)
