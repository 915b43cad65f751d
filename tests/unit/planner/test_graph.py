"""CLOVER's configuration graph."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from services.planner.domain import SegmentKind
from services.planner.graph import edit_distance, from_graph, to_graph
from tests.unit.planner import fleets

PROBLEM = fleets.problem(fleets.fleet((fleets.pool(), 2), (fleets.pool("t4"), 1)), [fleets.model()])
segments = st.dictionaries(st.sampled_from(PROBLEM.catalog), st.integers(1, 5), max_size=6)


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
    a, b, c = to_graph(one), to_graph(two), to_graph(three)
    assert edit_distance(a, a) == 0
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert (edit_distance(a, b) == 0) == (one == two)


def test_the_edit_distances_of_the_paper() -> None:
    """Figure 7: another variant costs 2, another slice costs 2, all edges anew the sum of both."""
    kinds = {(k.variant, k.profile): k for k in PROBLEM.catalog if k.profile != "whole"}
    small, large = kinds["v0", "3g.20gb"], kinds["v1", "3g.20gb"]
    elsewhere = kinds["v0", "2g.10gb"]
    center = to_graph({small: 2, large: 2})
    assert edit_distance(center, to_graph({small: 1, large: 3})) == 2
    assert edit_distance(center, to_graph({small: 1, elsewhere: 1, large: 2})) == 2
    assert edit_distance(center, to_graph({elsewhere: 4})) == 8
