"""What the operators of a stage need in memory."""

from collections.abc import Sequence
from functools import cache

from services.kit.operators.core.graph import Graph
from services.planner.core.partitioning.model import Span


class Memory:
    """Memory of runs of operators, at the graph's batch size.

    Weights of all operators, each once, and the most that tensors take while one of them runs. What
    the runtime needs for itself is not in it.

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
    """Return, for each operator, the size of all tensors that are kept while it runs."""
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
