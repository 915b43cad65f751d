"""A network as its operators and the tensors between them, in an order that they can run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that depends on what is asked.

    Attributes:
        name: As in the file.
        datatype: As numpy names it, for example "float32"; "" for what is no tensor.
        shape: Sizes at the batch size that the graph was read at.
        free: Which of them follow the batch or another free size of the inputs.
        batched: The first one is the number of items, whatever that is.
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
        """Sizes as a signature tells them: -1 where they are free."""
        sizes = zip(self.shape, self.free, strict=True)
        return tuple(-1 if free else size for size, free in sizes)


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator does. Attributes: flops, moved_bytes (to and from memory)."""

    flops: float
    moved_bytes: float

    @property
    def free(self) -> bool:
        """No kernel is launched for it: a view, or arithmetic on shapes."""
        return not self.flops and not self.moved_bytes


@dataclass(frozen=True, slots=True)
class Operator:
    """One node whose outputs depend on what is asked.

    Attributes:
        name: Unique in its graph.
        type: For example "Conv".
        inputs: Tensors it takes that depend on what is asked.
        constants: Those that do not: weights.
        outputs: Tensors it gives.
        shapes: Shapes of all it takes and then of all it gives, where they are tensors.
        datatype: What it computes in, as numpy names it.
        work: What it does.
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
        batch_size: Items that sizes and work are for.
        batches: The file leaves the number of items free.
        operators: In an order that they can run in.
        tensors: By name: inputs, and what operators give.
        constants: Size of each weight, by name, bytes.
        inputs, outputs: Names, as in the file and in its order.
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
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """From which operator to which a tensor must be kept, by name.

        Inputs are there before the first operator (-1); outputs are kept beyond the last.
        """
        first = dict.fromkeys(self.inputs, -1)
        last = dict.fromkeys(self.inputs, -1)
        for index, operator in enumerate(self.operators):
            last.update(dict.fromkeys(operator.inputs, index))
            first.update(dict.fromkeys(operator.outputs, index))
            last.update(dict.fromkeys(operator.outputs, index))
        last.update(dict.fromkeys(self.outputs, len(self.operators)))
        return {name: (first[name], last[name]) for name in first}
