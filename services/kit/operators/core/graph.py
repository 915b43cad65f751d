"""A network as operators and tensors, in topological order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that depends on the inputs.

    Attributes:
        name: Name in the file.
        datatype: numpy's name, for example "float32"; "" for values that are not tensors.
        shape: Sizes at the batch size that the graph was read at.
        free: Whether each size follows the batch or another free size of the inputs.
        batched: Whether the first size is the number of items.
        item_bytes: Size of an element.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    free: tuple[bool, ...]
    batched: bool
    item_bytes: int

    @property
    def size_bytes(self) -> int:
        """Size at the batch size that the graph was read at."""
        return prod(self.shape) * self.item_bytes

    @property
    def declared(self) -> tuple[int, ...]:
        """Sizes as in a signature: -1 for free ones."""
        sizes = zip(self.shape, self.free, strict=True)
        return tuple(-1 if free else size for size, free in sizes)


@dataclass(frozen=True, slots=True)
class Work:
    """Work of an operator. Attributes: flops, moved_bytes (to and from memory)."""

    flops: float
    moved_bytes: float

    @property
    def free(self) -> bool:
        """True if no kernel is launched for it: a view, or arithmetic on shapes."""
        return not self.flops and not self.moved_bytes


@dataclass(frozen=True, slots=True)
class Operator:
    """A node whose outputs depend on the inputs.

    Attributes:
        name: Unique in its graph.
        type: Operator type, for example "Conv".
        inputs: Input tensors that depend on the inputs of the graph.
        constants: Other inputs: weights.
        outputs: Output tensors.
        shapes: Shapes of the input tensors, then of the output tensors.
        datatype: numpy's name of the data type that it computes in.
        work: Work of the operator.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    datatype: str
    work: Work


@dataclass(frozen=True)
class Graph:
    """A network at one batch size.

    Attributes:
        name: File name without its suffix.
        batch_size: Number of items that sizes and work are for.
        batches: Whether the number of items is free in the file.
        operators: Operators in topological order.
        tensors: Inputs and outputs of operators, by name.
        constants: Size of each weight, by name, bytes.
        inputs, outputs: Names in the order of the file.
    """

    name: str
    batch_size: int
    batches: bool
    operators: tuple[Operator, ...]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """The operator that computes each tensor; -1 for inputs, which come first."""
        computed = {
            name: index for index, each in enumerate(self.operators) for name in each.outputs
        }
        return dict.fromkeys(self.inputs, -1) | computed

    @cached_property
    def dataflow(self) -> nx.MultiDiGraph[int]:
        """Operators by number, and an edge from each maker of a tensor to each of its users.

        The tensor's name is the edge's key. Inputs come from -1; outputs go to the number after the
        last operator.
        """
        import networkx as nx  # noqa: PLC0415  # a third of a second, for partitioning alone

        end = len(self.operators)
        users = [(index, each.inputs) for index, each in enumerate(self.operators)]
        outputs = [name for name in self.outputs if name in self.makers]
        graph: nx.MultiDiGraph[int] = nx.MultiDiGraph()
        graph.add_nodes_from(range(-1, end + 1))
        for index, names in [*users, (end, outputs)]:
            for name in names:
                graph.add_edge(self.makers[name], index, key=name)
        return graph

    @cached_property
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """The operators from which and to which each tensor must be kept: maker and last user.

        Inputs exist before the first operator (-1); outputs are kept beyond the last.
        """
        last = dict(self.makers)
        for _, user, name in self.dataflow.edges(keys=True):
            last[name] = max(last[name], user)
        return {name: (maker, last[name]) for name, maker in self.makers.items()}
