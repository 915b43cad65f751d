"""CLOVER's configuration graph, as networkx knows it, and the edit distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.model import SegmentKind
from services.planner.core.problem.configuration_graph import edit_distance
from tests.support.planner import fleets

PROBLEM = fleets.problem(fleets.fleet((fleets.pool(), 2), (fleets.pool("t4"), 1)), [fleets.model()])
segments = st.dictionaries(st.sampled_from(PROBLEM.catalog), st.integers(1, 5), max_size=6)


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


def _vertices(kind: SegmentKind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    pool = kind.pool
    variant = ("variant", kind.model, kind.variant)
    return variant, ("slice", pool.type.name, pool.zone, str(pool.pue), kind.profile)


@given(segments)
def test_a_graph_stands_for_exactly_its_segments(chosen: dict[SegmentKind, int]) -> None:
    """There and back, bipartite, and the weights sum to the instances (Definition 1)."""
    graph = to_graph(chosen)
    assert from_graph(graph) == chosen
    assert nx.is_bipartite(graph)
    assert graph.size(weight="weight") == sum(chosen.values())


@given(segments, segments, segments)
def test_the_edit_distance_is_a_metric(
    one: dict[SegmentKind, int], two: dict[SegmentKind, int], three: dict[SegmentKind, int]
) -> None:
    assert edit_distance(one, one) == 0
    assert edit_distance(one, two) == edit_distance(two, one)
    assert edit_distance(one, three) <= edit_distance(one, two) + edit_distance(two, three)
    assert (edit_distance(one, two) == 0) == (one == two)


@given(segments, segments)
def test_the_edit_distance_is_that_of_the_graphs_weights(
    one: dict[SegmentKind, int], two: dict[SegmentKind, int]
) -> None:
    weights = [
        {
            edge: data["weight"]
            for *edge_, key, data in to_graph(each).edges(data=True, keys=True)
            for edge in [(*edge_, key)]
        }
        for each in (one, two)
    ]
    edges = weights[0].keys() | weights[1].keys()
    assert edit_distance(one, two) == sum(
        abs(weights[0].get(edge, 0) - weights[1].get(edge, 0)) for edge in edges
    )


def test_the_edit_distances_of_the_paper() -> None:
    """Figure 7: another variant costs 2, another slice costs 2, all edges anew the sum of both."""
    kinds = {(k.variant, k.profile): k for k in PROBLEM.catalog if k.profile != "whole"}
    small, large = kinds["v0", "3g.20gb"], kinds["v1", "3g.20gb"]
    elsewhere = kinds["v0", "2g.10gb"]
    center = {small: 2, large: 2}
    assert edit_distance(center, {small: 1, large: 3}) == 2
    assert edit_distance(center, {small: 1, elsewhere: 1, large: 2}) == 2
    assert edit_distance(center, {elsewhere: 4}) == 8
