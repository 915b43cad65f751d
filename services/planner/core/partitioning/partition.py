"""Cuts a model into stages: legal cuts, then clusters, then which clusters make a stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.operators.core.clock_sensitivity import Cost, total
from services.kit.operators.core.graph import Graph
from services.planner.core.partitioning.clusters import clusters
from services.planner.core.partitioning.cuts import Cuts
from services.planner.core.partitioning.memory import Memory
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
"""A quarter of the range of scores; mu-Serve does not say what its THRES is."""

_FINEST: Final = 1 / 64


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """What to cut a model into.

    Attributes:
        stages: How many, >= 1.
        objective: What is good: the least "latency", or the most "throughput".
        threshold: Scores in a cluster differ by less from their mean, 0..2. Where clusters are
            fewer than stages, it is halved until they are not.
        max_memory_bytes: Most that a stage may take; None: anything.
        rules: Where a cut may be.
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
        costs: Times of each of its operators.
        wanted: How many stages, and which are good.

    Raises:
        FailedPrecondition: It has too few legal cuts, or no stages keep within the memory.
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
