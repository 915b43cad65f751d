"""Paths of a model's requests: one kind of segment, or a pipeline's kinds stage by stage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.planner.core.model import SegmentKind

Capacities = Mapping[SegmentKind, float]
"""Requests per second that all segments of a kind take together."""


@dataclass(frozen=True, slots=True, eq=False)
class ServingPath:
    """One path and its capacity.

    Attributes:
        parts: Share of each request by kind: 1 where the network is in one piece. The kinds of one
            stage share in proportion to their capacity; their parts sum to 1.
        capacity_rps: Capacity of the narrowest stage, req/s.
    """

    parts: Mapping[SegmentKind, float]
    capacity_rps: float

    def mean(self, value: Callable[[SegmentKind], float]) -> float:
        """Return the mean of a figure over the path, weighted by the kinds' parts."""
        return sum(part * value(kind) for kind, part in self.parts.items())

    @property
    def accuracy(self) -> float:
        """Accuracy of the answers."""
        return self.mean(lambda kind: 0.0 if kind.stage.index else kind.accuracy)

    def loads(self, load_rps: float) -> dict[SegmentKind, float]:
        """Return each kind's load for a load on this path, req/s."""
        return {kind: part * load_rps for kind, part in self.parts.items()}


def serving_paths(capacity_rps: Capacities) -> Iterator[ServingPath]:
    """Yield the paths of one model in the kinds' order; a pipeline that lacks a stage has none.

    Args:
        capacity_rps: Capacities of the kinds of one model, req/s.
    """
    pipelines: dict[str, list[dict[SegmentKind, float]]] = {}
    for kind, rps in capacity_rps.items():
        if kind.stage.of == 1:
            yield ServingPath({kind: 1.0}, rps)
        else:
            stages = pipelines.setdefault(kind.variant, [{} for _ in range(kind.stage.of)])
            stages[kind.stage.index][kind] = rps
    for stages in pipelines.values():
        totals = [sum(stage.values()) for stage in stages]
        if min(totals) > 0:
            parts = (
                (kind, rps / total)
                for stage, total in zip(stages, totals, strict=True)
                for kind, rps in stage.items()
            )
            yield ServingPath(dict(parts), min(totals))


def balances(kinds: Sequence[SegmentKind]) -> Iterator[list[tuple[int, float]]]:
    """Yield the sums that must be 0 for a pipeline's stages to get equal loads.

    One list for each stage after a first one: positions in `kinds` and their coefficients. A stage
    without a kind keeps its first stage at 0.
    """
    pipelines: dict[tuple[str, str], list[list[int]]] = {}
    for position, kind in enumerate(kinds):
        if kind.stage.of > 1:
            stages = pipelines.setdefault(
                (kind.model, kind.variant), [[] for _ in range(kind.stage.of)]
            )
            stages[kind.stage.index].append(position)
    for first, *later in pipelines.values():
        for stage in later:
            yield [*((each, 1.0) for each in first), *((each, -1.0) for each in stage)]
