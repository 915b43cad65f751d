"""Legal cuts of a graph in two, with a single tensor list that the second half needs.

A cut lies between two operators. The tensors that cross it are those made before it and used after
it, within a residual block also the skip connection. Shapes computed from the batch (`Shape`, then
arithmetic on it) cannot cross, as requests of other sizes share the next stage's batches; they are
recomputed from a tensor that does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from services.kit.grouping import grouped
from services.kit.operators.core.graph import Graph, Operator
from services.planner.core.partitioning.model import CUT_RULES, CutRules, Span


@dataclass(frozen=True)
class Cuts:
    """A graph's cuts.

    Attributes:
        graph: The graph.
        rules: Conditions for legal cuts.
    """

    graph: Graph
    rules: CutRules = CUT_RULES
    _crossing: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._crossing.update(_crossings(self.graph))

    def crossing(self, after: int) -> tuple[str, ...]:
        """Return the tensors made before `after` and used from there on: names, oldest first."""
        return self._crossing[after]

    def size_bytes(self, after: int) -> int:
        """Return the size of a tensor for the graph's batch, bytes."""
        return sum(self.graph.tensors[name].size_bytes for name in self.crossing(after))

    def legal(self, after: int) -> bool:
        """Return whether few and small tensors cross, with the batch as their first dimension."""
        names = self.crossing(after)
        tensors = [self.graph.tensors[name] for name in names]
        carried = all(t.datatype and (t.batched or not self.graph.batches) for t in tensors)
        small = self.size_bytes(after) <= self.rules.max_item_bytes * self.graph.batch_size
        return bool(names) and len(names) <= self.rules.max_tensors and carried and small

    def atoms(self) -> tuple[Span, ...]:
        """Return the parts between neighbouring legal cuts; they cover the graph."""
        end = len(self.graph.operators)
        bounds = [0, *filter(self.legal, range(1, end)), end]
        return tuple(Span(a, b) for a, b in pairwise(bounds))


def _crossings(graph: Graph) -> Iterator[tuple[int, tuple[str, ...]]]:
    made_by = {name: each for each in graph.operators for name in each.outputs}
    roots: dict[str, tuple[str, ...]] = {}
    for name in graph.spans:  # inputs, then in the order of operators
        roots[name] = _roots(name, graph, made_by, roots)
    ends = grouped((last, name) for name, (_, last) in graph.spans.items())
    live: dict[str, None] = dict.fromkeys(graph.inputs)
    _forget(live, ends, -1)
    for index, operator in enumerate(graph.operators):
        if index:
            yield index, tuple(dict.fromkeys(root for name in live for root in roots[name]))
        live.update(dict.fromkeys(operator.outputs))
        _forget(live, ends, index)


def _roots(
    name: str,
    graph: Graph,
    made_by: Mapping[str, Operator],
    roots: Mapping[str, tuple[str, ...]],
) -> tuple[str, ...]:
    """Return the tensors that must cross to have one: itself, or those it is recomputed from."""
    operator = made_by.get(name)
    again = operator is not None and operator.work.free and not graph.tensors[name].batched
    if operator is None or not again or not graph.batches:
        return (name,)
    return tuple(dict.fromkeys(root for each in operator.inputs for root in roots[each]))


def _forget(live: dict[str, None], ends: Mapping[int, list[str]], index: int) -> None:
    for name in ends.get(index, ()):
        live.pop(name, None)
