"""Fetches a plan and writes its configuration graph."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import typer

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import query
from services.planner.core.problem.configuration_graph import (
    Edge,
    Graph,
    SliceVertex,
    VariantVertex,
    configuration_graph,
)

_UNKNOWN = "unknown"
"""Type and zone of a GPU that has left the fleet since the plan was made."""


async def show_graph(config: Path, *, version: int, format_: str, out: Path | None) -> None:
    """Write the configuration graph of a plan.

    Args:
        config: The deployment file.
        version: The plan; 0: the newest.
        format_: "json", "graphml", "dot" or "png".
        out: The file to write; None: standard output, for all but "png".
    """
    request, fleet = planner_pb2.GetPlanRequest(version=version), planner_pb2.GetFleetRequest()
    plan = (await query(config, lambda clients: clients.planner.GetPlan(request))).plan
    nodes = (await query(config, lambda clients: clients.planner.GetFleet(fleet))).nodes
    write(graph_of(plan, list(nodes)), f"plan {plan.version} ({plan.strategy})", format_, out)


def write(graph: Graph, title: str, format_: str, out: Path | None) -> None:
    """Write a graph; `title` is the picture's. See `show_graph`."""
    if out is None:
        typer.echo(_TEXTS[format_](graph))
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    if format_ == "png":
        from services.cli.plan.graph_chart import draw  # noqa: PLC0415  # matplotlib takes a second

        draw(graph, title, out)
    else:
        out.write_text(f"{_TEXTS[format_](graph)}\n", encoding="utf-8")


def graph_of(plan: plan_pb2.Plan, nodes: list[planner_pb2.FleetNode]) -> Graph:
    """Return a plan's configuration graph; edges also have `share`, their share of the load.

    Args:
        plan: The plan.
        nodes: The fleet, for the types and zones of its GPUs.
    """
    weights: Counter[Edge] = Counter()
    shares: defaultdict[Edge, float] = defaultdict(float)
    for edge, share in _edges(plan, nodes):
        weights[edge] += 1
        shares[edge] += share
    graph = configuration_graph(weights)
    nx.set_edge_attributes(graph, {(e.variant, e.slice, e): shares[e] for e in weights}, "share")
    return graph


def _edges(plan: plan_pb2.Plan, nodes: list[planner_pb2.FleetNode]) -> Iterator[tuple[Edge, float]]:
    types = {gpu.uuid: gpu.type.name for each in nodes for gpu in each.node.gpus}
    sites = {each.node.name: (each.node.zone, each.pue) for each in nodes}
    for segment in plan.segments:
        spec = segment.spec
        zone, pue = sites.get(segment.node, (_UNKNOWN, 1.0))
        gpu = types.get(spec.gpu_uuid, _UNKNOWN)
        edge = Edge(
            VariantVertex(spec.model, spec.variant, spec.stage),
            SliceVertex(gpu, zone, pue, spec.placement.profile),
            spec.batch_size,
            spec.processes,
            plan.clocks_mhz.get(spec.gpu_uuid, 0),
        )
        yield edge, segment.share


def as_json(graph: Graph) -> str:
    """Return the graph as networkx' node-link JSON."""
    return json.dumps(nx.node_link_data(_named(graph), edges="edges"), indent=2)


def as_graphml(graph: Graph) -> str:
    """Return the graph as GraphML, for Gephi, yEd, igraph, ..."""
    return "\n".join(nx.generate_graphml(_named(graph)))


def as_dot(graph: Graph) -> str:
    """Return the graph in Graphviz' language, variants on the left."""
    named = _named(graph)
    lines = ["digraph configuration {", "  rankdir=LR; node [shape=box];"]
    for node, data in named.nodes(data=True):
        shape = "ellipse" if data["bipartite"] else "box"
        lines.append(f"  {json.dumps(node)} [shape={shape}];")
    for start, end, data in named.edges(data=True):
        label = f"{data['weight']} (batch {data['batch_size']}, {data['processes']} processes)"
        lines.append(f"  {json.dumps(start)} -> {json.dumps(end)} [label={json.dumps(label)}];")
    return "\n".join([*lines, "}"])


_TEXTS = {"json": as_json, "graphml": as_graphml, "dot": as_dot}


def _named(graph: Graph) -> nx.MultiDiGraph[str]:
    """Return the graph with names as vertices and their parts as attributes, for exports."""
    named: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for vertex, side in graph.nodes(data="bipartite"):
        fields = {name: getattr(vertex, name) for name in vertex.__slots__}
        named.add_node(str(vertex), bipartite=side, **fields)
    for start, end, edge, data in graph.edges(keys=True, data=True):
        parts: dict[str, Any] = {
            "batch_size": edge.batch_size,
            "processes": edge.processes,
            "clock_mhz": edge.clock_mhz,
        }
        named.add_edge(str(start), str(end), **data, **parts)
    return named
