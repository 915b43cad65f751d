"""CLOVER's configuration graph, and the edit distance on it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.model import SegmentKind
from services.planner.core.problem.configuration_graph import (
    NEIGHBOURHOOD,
    Edge,
    Graph,
    SliceVertex,
    VariantVertex,
    configuration_graph,
    edit_distance,
)
from services.planner.core.strategies.annealing import neighbour
from tests.support.examples import examples
from tests.support.planner import fleets

PROBLEM = fleets.problem(fleets.fleet((fleets.pool(), 2), (fleets.pool("t4"), 1)), [fleets.model()])
segments = st.dictionaries(st.sampled_from(PROBLEM.catalog), st.integers(1, 5), max_size=6)


def edge_of(kind: SegmentKind) -> Edge:
    """Return the edge whose weight counts the segments of a kind."""
    pool = kind.pool
    return Edge(
        VariantVertex(kind.model, kind.variant, kind.stage.index),
        SliceVertex(pool.type.name, pool.zone, pool.pue, kind.profile),
        kind.batch_size,
        kind.processes,
        kind.clock_mhz,
    )


def to_graph(chosen: Mapping[SegmentKind, int]) -> Graph:
    return configuration_graph({edge_of(kind): count for kind, count in chosen.items()})


LEGAL_EDGES = frozenset(to_graph(dict.fromkeys(PROBLEM.catalog, 1)).edges)


def graph_edit_distance(one: Graph, other: Graph) -> int:
    """Both are graphs over the same vertices, so that only edge weights are edited (4.2)."""
    edges = {*one.edges(keys=True), *other.edges(keys=True)}
    return sum(abs(weight(one, *edge) - weight(other, *edge)) for edge in edges)


def weight(graph: Graph, variant: VariantVertex, slice_: SliceVertex, edge: Edge) -> int:
    return int(graph.get_edge_data(variant, slice_, edge, {}).get("weight", 0))


@given(segments)
def test_a_graph_is_bipartite_and_its_weights_are_the_instances(
    chosen: dict[SegmentKind, int],
) -> None:
    """Definition 1: edges lead from variants to slices, and weigh the instances of each kind."""
    graph = to_graph(chosen)
    variants = {node for node, data in graph.nodes(data=True) if data["bipartite"] == 0}

    assert nx.bipartite.is_bipartite_node_set(graph.to_undirected(), variants) or not chosen
    assert all(start in variants and end not in variants for start, end in graph.edges())
    weights = {edge: data["weight"] for *_, edge, data in graph.edges(keys=True, data=True)}
    assert weights == {edge_of(kind): count for kind, count in chosen.items()}


def test_kinds_of_a_catalog_are_different_edges() -> None:
    """Two pools of one GPU type, two clocks: the graph distinguishes all that a plan does."""
    pool = fleets.pool()
    costly = replace(pool, pue=2.0)
    kinds = [
        replace(kind, pool=there, clock_mhz=clock)
        for kind in PROBLEM.catalog
        for there in (pool, costly, replace(pool, zone="elsewhere"))
        for clock in (0, 900)
    ]
    kinds = list(dict.fromkeys(kinds))
    assert to_graph(dict.fromkeys(kinds, 1)).size() == len(kinds)


@given(segments, segments, segments)
def test_the_edit_distance_is_a_metric(
    one: dict[SegmentKind, int], two: dict[SegmentKind, int], three: dict[SegmentKind, int]
) -> None:
    assert edit_distance(one, one) == 0
    assert edit_distance(one, two) == edit_distance(two, one)
    assert edit_distance(one, three) <= edit_distance(one, two) + edit_distance(two, three)
    assert (edit_distance(one, two) == 0) == (one == two)


@given(segments, segments)
def test_the_edit_distance_of_counts_is_that_of_the_graphs(
    one: dict[SegmentKind, int], two: dict[SegmentKind, int]
) -> None:
    assert edit_distance(one, two) == graph_edit_distance(to_graph(one), to_graph(two))


@pytest.mark.timeout(300)  # many examples, each of seconds where the machine is shared by many
@examples(0.25)
@given(segments, st.integers(0, 2**32))
def test_annealing_draws_neighbours_in_the_space_of_graphs(
    center: dict[SegmentKind, int], seed: int
) -> None:
    """Within the radius, and only along edges of the catalog: the others have no weight."""
    drawn = neighbour(PROBLEM, PROBLEM.catalog, center, random.Random(seed))

    if drawn is not None:
        assert 0 < graph_edit_distance(to_graph(center), to_graph(drawn)) <= NEIGHBOURHOOD
        assert Counter(PROBLEM.catalog).keys() >= drawn.keys()
        assert LEGAL_EDGES.issuperset(to_graph(drawn).edges)


def test_the_edit_distances_of_the_paper() -> None:
    """Figure 7: another variant costs 2, another slice costs 2, all new edges the sum of both."""
    kinds = {(k.variant, k.profile): k for k in PROBLEM.catalog if k.profile != "whole"}
    small, large = kinds["v0", "3g.20gb"], kinds["v1", "3g.20gb"]
    elsewhere = kinds["v0", "2g.10gb"]
    center = {small: 2, large: 2}
    assert edit_distance(center, {small: 1, large: 3}) == 2
    assert edit_distance(center, {small: 1, elsewhere: 1, large: 2}) == 2
    assert edit_distance(center, {elsewhere: 4}) == 8
