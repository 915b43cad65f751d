"""Partitioning of a model into stages: legal cuts, then clusters, then stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final

from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.operators.core.clock_sensitivity import Cost, total
from services.kit.operators.core.graph import Graph
from services.planner.core.partitioning.cuts import Cuts
from services.planner.core.partitioning.model import (
    CUT_RULES,
    Cluster,
    CutRules,
    Partition,
    Partitioning,
    Span,
    StageObjective,
)
from services.planner.core.partitioning.stages import Units, choose

THRESHOLD: Final = 0.5
"""A quarter of the range of scores; mu-Serve does not state its THRES."""

_FINEST: Final = 1 / 64


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """Requirements on the stages of a model.

    Attributes:
        stages: Number of stages, >= 1.
        objective: "latency": least latency; "throughput": most throughput.
        threshold: Largest difference of scores from their cluster's mean, 0..2. If there are fewer
            clusters than stages, it is halved until there are enough.
        max_memory_bytes: Largest memory of a stage, bytes; None: no limit.
        rules: Conditions for cuts.
    """

    stages: int
    objective: StageObjective = "throughput"
    threshold: float = THRESHOLD
    max_memory_bytes: int | None = None
    rules: CutRules = CUT_RULES

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise InvalidArgument(f"stages must be >= 1, got {self.stages}", field="stages")
        if not 0 <= self.threshold <= 2:
            raise InvalidArgument(
                f"threshold must be in 0..2, got {self.threshold}", field="threshold"
            )


def partition(graph: Graph, costs: Sequence[Cost], wanted: PartitionRequest) -> Partitioning:
    """Cut a model into stages.

    Args:
        graph: The model.
        costs: Times of each operator.
        wanted: Number of stages, and the objective.

    Raises:
        FailedPrecondition: It has too few legal cuts, or no stages fit into the memory.
    """
    cuts = Cuts(graph, wanted.rules)
    threshold, units = _clusters(cuts, costs, wanted)
    memory = Memory(graph, [each.span for each in units])
    starts = choose(
        Units(
            latencies_s=[each.cost.latency_s for each in units],
            transfers_bytes=[cuts.size_bytes(each.span.start) for each in units[1:]],
            memory_bytes=memory.bytes,
            max_memory_bytes=wanted.max_memory_bytes,
        ),
        wanted.stages,
        wanted.objective,
    )
    bounds = [*starts, len(units)]
    stages = tuple(
        _stage(index, units[start:stop], cuts, memory.bytes(start, stop), costs)
        for index, (start, stop) in enumerate(pairwise(bounds))
    )
    return Partitioning(graph, threshold, units, stages)


def _clusters(
    cuts: Cuts, costs: Sequence[Cost], wanted: PartitionRequest
) -> tuple[float, tuple[Cluster, ...]]:
    atoms = cuts.atoms()
    threshold = wanted.threshold
    while len(found := clusters(atoms, costs, threshold)) < wanted.stages and threshold:
        threshold = threshold / 2 if threshold > _FINEST else 0.0
    if len(found) < wanted.stages:
        raise FailedPrecondition(
            f"{cuts.graph.name} can be cut into at most {len(found)} stages: no more cuts hand on "
            f"few and small tensors; wanted are {wanted.stages}",
            field="stages",
        )
    return threshold, found


def _stage(
    index: int,
    units: Sequence[Cluster],
    cuts: Cuts,
    memory_bytes: int,
    costs: Sequence[Cost],
) -> Partition:
    graph, span = cuts.graph, Span(units[0].span.start, units[-1].span.stop)
    operators = graph.operators[span.start : span.stop]
    last = span.stop == len(graph.operators)
    return Partition(
        model=graph.name,
        index=index,
        span=span,
        inputs=cuts.crossing(span.start) if span.start else graph.inputs,
        outputs=graph.outputs if last else cuts.crossing(span.stop),
        memory_bytes=memory_bytes,
        cost=total(costs[span.start : span.stop]),
        transfer_bytes=0 if last else cuts.size_bytes(span.stop),
        item_flops=sum(each.work.flops for each in operators) / graph.batch_size,
    )


def clusters(atoms: Sequence[Span], costs: Sequence[Cost], threshold: float) -> tuple[Cluster, ...]:
    """Cluster neighbours of similar sensitivity: mu-Serve's Algorithm 1 (ATC'24), corrected.

    As printed (section 3.1), the head is added twice, the last cluster is dropped, the score of a
    new cluster is that of the one before, and `abs(score) - mean` is compared in place of
    `abs(score - mean)`. Here, in addition, the units are not single operators but parts between two
    legal cuts, so that every border of a cluster is one; and a mean weights operators by their
    time, so that it is the cluster's own score.

    Args:
        atoms: Units in order; they cover all operators.
        costs: Times of each operator.
        threshold: Difference of scores below which a unit joins the cluster before it. 0: only
            units that take no time join.

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
        return True  # a unit without time has no score, and would make an idle stage
    return abs(atom.score - cluster.score) < threshold


class Memory:
    """Memory of runs of operators, at the graph's batch size.

    Weights of all operators, each once, and the peak size of tensors while one of them runs. The
    runtime's own memory is not included.

    Args:
        graph: The model.
        spans: Units that stages are made of, in order.
    """

    def __init__(self, graph: Graph, spans: Sequence[Span]) -> None:
        self._sizes = graph.constants
        live = _live_bytes(graph)
        operators = graph.operators
        self._peaks = [max(live[span.start : span.stop]) for span in spans]
        self._weights = [
            {name for each in operators[span.start : span.stop] for name in each.constants}
            for span in spans
        ]
        self.bytes = cache(self._bytes)

    def _bytes(self, start: int, stop: int) -> int:
        weights = set().union(*self._weights[start:stop])
        held = sum(self._sizes[name] for name in weights)
        return held + max(self._peaks[start:stop])


def _live_bytes(graph: Graph) -> list[int]:
    """Return, for each operator, the size of all tensors kept while it runs, bytes."""
    changes = [0] * (len(graph.operators) + 1)
    for name, (first, last) in graph.spans.items():
        size_bytes = graph.tensors[name].size_bytes
        changes[max(first, 0)] += size_bytes
        changes[min(last + 1, len(graph.operators))] -= size_bytes
    live, held = [], 0
    for change in changes[:-1]:
        held += change
        live.append(held)
    return live
