"""CLOVER's configuration graph (SC'23, Definition 1), its edit distance and its neighbourhood.

A configuration graph is directed and bipartite: an edge leads from a variant to a slice type, and
its weight is the number of instances of the variant on slices of that type. Here vertices also
carry the model, the stage of a pipeline and the pool, and parallel edges differ in batch size,
number of processes and clock, which the paper keeps fixed. An edge missing from the catalog's
graph has no weight: the variant does not fit on the slice, or is too slow there.

A search judges thousands of configurations and therefore keeps the weights in dictionaries by
segment kind. `edit_distance` of these is that of the graphs (CLOVER 4.2): changing an instance's
variant costs 2, changing its slice costs 2.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import networkx as nx

Graph: TypeAlias = "nx.MultiDiGraph[Any]"

NEIGHBOURHOOD = 4
"""Largest edit distance of a neighbour: two instances change their variant or slice (4.2)."""


@dataclass(frozen=True, slots=True, order=True)
class VariantVertex:
    """A variant, or one stage of it. Attributes: model, variant, stage."""

    model: str
    variant: str
    stage: int = 0

    def __str__(self) -> str:
        return f"{self.model}/{self.variant}" + (f" stage {self.stage}" if self.stage else "")


@dataclass(frozen=True, slots=True, order=True)
class SliceVertex:
    """A slice type of a pool. Attributes: gpu (its type), zone, pue, profile (slice profile)."""

    gpu: str
    zone: str
    pue: float
    profile: str

    def __str__(self) -> str:
        return f"{self.profile} of {self.gpu}, {self.zone}, PUE {self.pue:g}"


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """A connection of a variant to a slice type.

    Attributes:
        variant: Tail of the edge.
        slice: Head of the edge.
        batch_size: Largest batch of the instances, items.
        processes: Worker processes of each instance.
        clock_mhz: SM clock of their GPUs, MHz; 0: not lowered.
    """

    variant: VariantVertex
    slice: SliceVertex
    batch_size: int
    processes: int
    clock_mhz: int = 0


def configuration_graph(weights: Mapping[Edge, int]) -> Graph:
    """Return the configuration graph with these weights; an edge of weight 0 is left out.

    Nodes have the attribute `bipartite`, 0 for variants and 1 for slices, as
    `networkx.algorithms.bipartite` expects it; edges have the Edge as their key, and `weight`.
    """
    import networkx as nx  # noqa: PLC0415  # a third of a second that no service needs to start

    graph: Graph = nx.MultiDiGraph()
    for edge, weight in sorted(weights.items()):
        if weight > 0:
            graph.add_node(edge.variant, bipartite=0)
            graph.add_node(edge.slice, bipartite=1)
            graph.add_edge(edge.variant, edge.slice, key=edge, weight=weight)
    return graph


def edit_distance(one: Mapping[Any, int], other: Mapping[Any, int]) -> int:
    """Return the edit distance of two configurations, given as weights by edge or segment kind."""
    keys: set[Hashable] = one.keys() | other.keys()
    return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in keys)


def are_neighbours(one: Mapping[Any, int], other: Mapping[Any, int]) -> bool:
    """Return whether two configurations differ, and by no more than the neighbourhood's radius."""
    return 0 < edit_distance(one, other) <= NEIGHBOURHOOD
