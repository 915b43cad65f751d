"""The edit distance of CLOVER's configuration graphs (SC'23, Definition 1).

Such a graph is directed and bipartite: variant vertices, slice vertices, and edges whose weight is
the number of instances. Vertices carry the model and the pool, and parallel edges the batch size
and the number of processes, which the paper does not vary.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.planner.core.model import SegmentKind


def edit_distance(one: Mapping[SegmentKind, int], other: Mapping[SegmentKind, int]) -> int:
    """Return the graph edit distance on edge weights of two configurations (CLOVER 4.2).

    All configuration graphs share their vertices, so that the distance is the sum of weight
    differences: 2 for another variant on one slice, 2 for another slice of one instance.
    """
    kinds = one.keys() | other.keys()
    return sum(abs(one.get(kind, 0) - other.get(kind, 0)) for kind in kinds)
