"""The sensitivity of every operator of a model on one device."""

from collections import defaultdict
from dataclasses import dataclass

from services.gpuagent.profiling.core.operator_bucket import Bucket
from services.gpuagent.profiling.core.roofline import Roofline
from services.gpuagent.profiling.sensitivity.database import Database
from services.gpuagent.profiling.sensitivity.measure import Measured
from services.kit.operators.core.clock_sensitivity import FREE, INSENSITIVE, Cost, total
from services.kit.operators.core.graph import Graph


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """All operators of one type. Attributes: type, count, cost, share (of the model's time)."""

    type: str
    count: int
    cost: Cost
    share: float


@dataclass(frozen=True, slots=True)
class Study:
    """A model on a device.

    Attributes:
        graph: The model.
        device: The device.
        method: How times were obtained.
        costs: By operator, in the graph's order.
    """

    graph: Graph
    device: str
    method: str
    costs: tuple[Cost, ...]

    @property
    def cost(self) -> Cost:
        """Times of the whole model."""
        return total(self.costs)

    @property
    def insensitive_share(self) -> float:
        """Share of the kernels that hardly notice the clock, 0..1 (mu-Serve, Fig. 14a)."""
        kernels = [cost for cost in self.costs if cost.latency_s]
        return sum(cost.score < INSENSITIVE for cost in kernels) / max(len(kernels), 1)

    def kinds(self) -> tuple[OperatorKind, ...]:
        """Return the operators by type, those that take longest first."""
        found: dict[str, list[Cost]] = defaultdict(list)
        for operator, cost in zip(self.graph.operators, self.costs, strict=True):
            found[operator.type].append(cost)
        whole_s = self.cost.latency_s or 1.0
        kinds = (
            OperatorKind(name, len(costs), total(costs), total(costs).latency_s / whole_s)
            for name, costs in found.items()
        )
        return tuple(sorted(kinds, key=lambda kind: (-kind.share, kind.type)))


def study(graph: Graph, device: Roofline | Measured, database: Database, *, reuse: bool) -> Study:
    """Return a model's sensitivities, and keep them.

    Args:
        graph: The model.
        device: Gives the times.
        database: Where they are kept.
        reuse: Times that it knows are taken from there; those of like shapes will do.
    """
    costs = []
    for operator in graph.operators:
        bucket = Bucket.of(operator)
        cost = database.find(bucket, device.device, device.method) if reuse else None
        if cost is None and not operator.work.free:
            cost = device.cost(operator)
            database.keep(bucket, device.device, device.method, cost)
        costs.append(cost or FREE)
    return Study(graph, device.device, device.method, tuple(costs))
