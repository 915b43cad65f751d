"""A configuration graph as a picture: variants on the left, slice types on the right."""

from collections import Counter
from pathlib import Path
from typing import Any, Final

import networkx as nx
from matplotlib.figure import Figure

from services.planner.core.problem.configuration_graph import Graph, SliceVertex, VariantVertex

_VARIANT, _SLICE, _EDGE = "#4e79a7", "#f28e2b", "#888888"
_INCHES_PER_VERTEX: Final = 0.7
_MAX_WIDTH: Final = 6.0


def draw(graph: Graph, title: str, file: Path) -> None:
    """Write a PNG file; parallel edges are drawn as one, labelled with the number of instances."""
    sides: list[list[Any]] = [
        sorted(vertex for vertex in graph if isinstance(vertex, kind))
        for kind in (VariantVertex, SliceVertex)
    ]
    height = max(2.5, _INCHES_PER_VERTEX * max(len(sides[0]), len(sides[1])) + 1)
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11)
    axes.set_axis_off()
    axes.set_xlim(-0.9, 1.9)
    positions = {
        vertex: (side, -(place + 0.5) / len(vertices))
        for side, vertices in enumerate(sides)
        for place, vertex in enumerate(vertices)
    }
    if positions:
        _draw(axes, graph, sides, positions)
    else:
        axes.text(0.5, 0.5, "no segments", ha="center")
    figure.savefig(file, dpi=120, format="png")


def _draw(axes: Any, graph: Graph, sides: list[list[Any]], positions: dict[Any, Any]) -> None:
    counts: Counter[tuple[Any, Any]] = Counter()
    for start, end, data in graph.edges(data=True):
        counts[start, end] += data["weight"]
    simple: nx.DiGraph[Any] = nx.DiGraph(list(counts))
    widest = max(counts.values())
    widths = [1 + (_MAX_WIDTH - 1) * counts[edge] / widest for edge in simple.edges]
    nx.draw_networkx_edges(
        simple, positions, ax=axes, width=widths, edge_color=_EDGE, arrowsize=8, alpha=0.6
    )
    nx.draw_networkx_edge_labels(simple, positions, edge_labels=counts, ax=axes, label_pos=0.65)
    for side, colour in enumerate((_VARIANT, _SLICE)):
        nx.draw_networkx_nodes(
            simple, positions, nodelist=sides[side], node_color=colour, node_size=120, ax=axes
        )
        for vertex in sides[side]:
            x, y = positions[vertex]
            where = "left" if side else "right"
            text = str(vertex).replace(", ", "\n", 1)
            axes.text(x + (0.05 if side else -0.05), y, text, ha=where, va="center", fontsize=9)
