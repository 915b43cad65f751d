"""CLOVER's configuration graph (SC'23, Definition 1) and its edit distance.

A directed bipartite graph: variant vertices, slice vertices, and edges whose weight is the number
of instances. Vertices carry the model and the pool, and parallel edges the batch size and the
number of processes, which the paper does not vary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx

from services.planner.domain import SegmentKind


def to_graph(segments: Mapping[SegmentKind, int]) -> nx.MultiDiGraph[Any]:
    """Return the configuration graph of `segments`; counts of 0 make no edge."""
    graph: nx.MultiDiGraph[Any] = nx.MultiDiGraph()
    for kind, count in segments.items():
        if count > 0:
            variant, slice_ = _vertices(kind)
            graph.add_node(variant, bipartite=0)
            graph.add_node(slice_, bipartite=1)
            graph.add_edge(
                variant,
                slice_,
                key=(kind.batch_size, kind.processes),
                weight=count,
                kind=kind,
            )
    return graph


def from_graph(graph: nx.MultiDiGraph[Any]) -> dict[SegmentKind, int]:
    """Return the segments that a configuration graph stands for."""
    return {data["kind"]: data["weight"] for _, _, data in graph.edges(data=True)}


def edit_distance(one: Mapping[SegmentKind, int], other: Mapping[SegmentKind, int]) -> int:
    """Return the graph edit distance on edge weights of two configurations (CLOVER 4.2).

    All configuration graphs share their vertices, so that the distance is the sum of weight
    differences: 2 for another variant on one slice, 2 for another slice of one instance.
    """
    kinds = one.keys() | other.keys()
    return sum(abs(one.get(kind, 0) - other.get(kind, 0)) for kind in kinds)


def _vertices(kind: SegmentKind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    pool = kind.pool
    variant = ("variant", kind.model, kind.variant)
    return variant, ("slice", pool.type.name, pool.zone, str(pool.pue), kind.profile)
