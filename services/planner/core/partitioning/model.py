"""What a model is cut into."""

from dataclasses import dataclass
from typing import Final, Literal

from services.kit.operators.core.clock_sensitivity import Cost
from services.kit.operators.core.graph import Graph
from services.kit.units import BYTES_PER_MIB

StageObjective = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class CutRules:
    """Where a model may be cut.

    Attributes:
        max_tensors: Most tensors that are handed on.
        max_item_bytes: Their size together, per item.
    """

    max_tensors: int = 4
    max_item_bytes: int = 4 * BYTES_PER_MIB


CUT_RULES: Final = CutRules()


@dataclass(frozen=True, slots=True)
class Span:
    """Operators that follow one another, [start, stop) in the graph's order."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """Neighbours of like sensitivity, between two legal cuts. Attributes: span, cost."""

    span: Span
    cost: Cost


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a model that one device runs: a stage of a pipeline.

    Attributes:
        model: The model.
        index: Its place in the pipeline, from 0.
        span: Its operators.
        inputs, outputs: Tensors it takes and gives, by name; a stage's outputs are the next
            stage's inputs.
        memory_bytes: Weights, and the most that its tensors take at a time.
        cost: Times of a batch.
        transfer_bytes: What a batch hands on to the next stage; 0 for the last.
        item_flops: Operations per item.
    """

    model: str
    index: int
    span: Span
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    memory_bytes: int
    cost: Cost
    transfer_bytes: int
    item_flops: float

    @property
    def latency_s(self) -> float:
        """Time of a batch at the default clock, s."""
        return self.cost.latency_s

    @property
    def sensitivity(self) -> float:
        """How its latency follows the clock, 0..2 (`kit.operators.core.clock_sensitivity`)."""
        return self.cost.score

    @property
    def clock_sensitivity(self) -> float:
        """The same from 0 to 1, as deployments and placement count it."""
        return self.cost.clock_sensitivity


@dataclass(frozen=True, slots=True)
class Partitioning:
    """A model and its stages.

    Attributes:
        graph: The model.
        threshold: Scores that differ by less were put into one cluster.
        clusters: The units that stages are made of.
        stages: In the order that requests pass them.
    """

    graph: Graph
    threshold: float
    clusters: tuple[Cluster, ...]
    stages: tuple[Partition, ...]
