"""Records of partitioning: rules, clusters and stages."""

from dataclasses import dataclass
from typing import Final, Literal

from services.kit.operators.core.clock_sensitivity import Cost
from services.kit.operators.core.graph import Graph
from services.kit.units import BYTES_PER_MIB

StageObjective = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class CutRules:
    """Conditions for cuts of a model.

    Attributes:
        max_tensors: Largest number of tensors that cross a cut.
        max_item_bytes: Their largest total size per item, bytes.
    """

    max_tensors: int = 4
    max_item_bytes: int = 4 * BYTES_PER_MIB


CUT_RULES: Final = CutRules()


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive operators, [start, stop) in the graph's order."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """Neighbours of similar sensitivity, between two legal cuts. Attributes: span, cost."""

    span: Span
    cost: Cost


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a model that one device runs: a stage of a pipeline.

    Attributes:
        model: The model.
        index: Position in the pipeline, from 0.
        span: Its operators.
        inputs, outputs: Names of its input and output tensors; a stage's outputs are the next
            stage's inputs.
        memory_bytes: Weights, and the peak size of its tensors, bytes.
        cost: Times of a batch.
        transfer_bytes: Size of a batch's outputs for the next stage, bytes; 0 for the last.
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
        """Clock sensitivity of its latency, 0..2 (`kit.operators.core.clock_sensitivity`)."""
        return self.cost.score

    @property
    def clock_sensitivity(self) -> float:
        """Clock sensitivity from 0 to 1, as in deployments and placement."""
        return self.cost.clock_sensitivity


@dataclass(frozen=True, slots=True)
class Partitioning:
    """A model and its stages.

    Attributes:
        graph: The model.
        threshold: Difference of scores below which operators were clustered.
        clusters: Units that stages are made of.
        stages: Stages in the order in which requests pass them.
    """

    graph: Graph
    threshold: float
    clusters: tuple[Cluster, ...]
    stages: tuple[Partition, ...]
