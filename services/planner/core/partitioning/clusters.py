"""Operator clusters: mu-Serve's Algorithm 1 (ATC'24, section 3.1), corrected.

As printed, the head is added twice, the last cluster is dropped, the score of a new cluster is that
of the one before, and `abs(score) - mean` is compared in place of `abs(score - mean)`. Here, too,
the units are not single operators but what lies between two legal cuts, so that every border of a
cluster is one; and a mean weighs operators by their time, so that it is the cluster's own score.
"""

from collections.abc import Sequence

from services.kit.operators.core.clock_sensitivity import Cost, total
from services.planner.core.partitioning.model import Cluster, Span


def clusters(atoms: Sequence[Span], costs: Sequence[Cost], threshold: float) -> tuple[Cluster, ...]:
    """Put neighbours of like sensitivity together.

    Args:
        atoms: The units, in order; they cover all operators.
        costs: Times of each operator.
        threshold: A unit joins the cluster before it if their scores differ by less. 0: none does,
            but what takes no time.

    Returns:
        Clusters that cover the same operators, in order.
    """
    found: list[Cluster] = []
    for atom in atoms:
        cost = total(costs[atom.start : atom.stop])
        before = found[-1] if found else None
        if before is not None and _alike(before.cost, cost, threshold):
            span = Span(before.span.start, atom.stop)
            found[-1] = Cluster(span, total((before.cost, cost)))
        else:
            found.append(Cluster(atom, cost))
    return tuple(found)


def _alike(cluster: Cost, atom: Cost, threshold: float) -> bool:
    if not cluster.latency_s or not atom.latency_s:
        return True  # what takes no time has no score, and would make a stage that does nothing
    return abs(atom.score - cluster.score) < threshold
