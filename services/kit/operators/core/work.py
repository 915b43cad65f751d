"""Operations and memory traffic of an operator, for a roofline model.

A multiply-accumulate counts as two. Every tensor is read or written once, which holds where a
kernel keeps its tile on the chip. Counts of what is neither convolution nor matrix product are
small, and rough: such operators are bound by memory wherever they run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

from services.kit.operators.core.graph import Work

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor in a run. Attributes: datatype (numpy's name), shape, item_bytes."""

    datatype: str
    shape: Shape
    item_bytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Total size, bytes."""
        return self.elements * self.item_bytes

    @property
    def discrete(self) -> bool:
        """True if it has integers or booleans."""
        return not self.datatype.startswith("f")


@dataclass(frozen=True, slots=True)
class Node:
    """An operator as in its file; omitted operands are None."""

    type: str
    attributes: Mapping[str, Any]
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]

    def taken(self, index: int) -> Shape:
        """Return the shape of an input; () for an omitted one."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        return operand.shape if operand else ()

    @property
    def given(self) -> int:
        """Number of output elements."""
        return sum(operand.elements for operand in self.outputs if operand)


_VIEWS: Final = {
    "Dropout",
    "Flatten",
    "Identity",
    "Reshape",
    "Shape",
    "Size",
    "Squeeze",
    "Unsqueeze",
}
"""Operators that move no memory: another shape of the same bytes."""

_PICKS: Final = {"Expand", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Tile"}
"""Operators that read only as much as they write."""

_PER_ELEMENT: Final = {
    "BatchNormalization": 2,
    "Cos": 10,
    "DynamicQuantizeLinear": 4,
    "Erf": 15,
    "Exp": 10,
    "Gelu": 20,
    "LayerNormalization": 8,
    "Log": 10,
    "LogSoftmax": 15,
    "Pow": 15,
    "Sigmoid": 12,
    "Sin": 10,
    "Softmax": 12,
    "Sqrt": 5,
    "Tanh": 15,
}
"""Operations per output element, where they are not one."""

_SHAPE_ELEMENTS: Final = 64
"""Integer tensors up to this size are shapes: the host computes them while kernels run."""


def work(node: Node) -> Work:
    """Return the work of an operator."""
    if node.type in _VIEWS or _on_shapes(node):
        return Work(0.0, 0.0)
    return Work(float(flops(node)), float(moved_bytes(node)))


def flops(node: Node) -> float:
    """Return the number of operations of an operator."""
    by_type: Mapping[str, Callable[[Node], float]] = {
        "AveragePool": _pool,
        "Conv": _convolution,
        "ConvInteger": _convolution,
        "ConvTranspose": _transposed,
        "DynamicQuantizeMatMul": _product,
        "FusedMatMul": _product,
        "GRU": _recurrent,
        "Gemm": _gemm,
        "GlobalAveragePool": _reduced,
        "GlobalMaxPool": _reduced,
        "LRN": _local_response,
        "LSTM": _recurrent,
        "LinearClassifier": partial(_vectors, attribute="coefficients"),
        "LinearRegressor": partial(_vectors, attribute="coefficients"),
        "MatMul": _product,
        "MatMulInteger": _product,
        "MaxPool": _pool,
        "QLinearConv": partial(_convolution, weights=3),
        "QLinearMatMul": _product,
        "RNN": _recurrent,
        "SVMClassifier": partial(_vectors, attribute="support_vectors"),
        "SVMRegressor": partial(_vectors, attribute="support_vectors"),
    }
    if node.type in by_type:
        return by_type[node.type](node)
    if node.type.startswith("Reduce"):
        return _reduced(node)
    return node.given * _PER_ELEMENT.get(node.type, 1)


def moved_bytes(node: Node) -> int:
    """Return the bytes that an operator reads and writes."""
    given = sum(operand.size_bytes for operand in node.outputs if operand)
    if node.type in _PICKS:
        return 2 * given
    return given + sum(operand.size_bytes for operand in node.inputs if operand)


def _on_shapes(node: Node) -> bool:
    operands = [operand for operand in (*node.inputs, *node.outputs) if operand]
    return all(each.discrete and each.elements <= _SHAPE_ELEMENTS for each in operands)


def _convolution(node: Node, weights: int = 1) -> float:
    return 2 * node.given * prod(node.taken(weights)[1:])


def _transposed(node: Node) -> float:
    return 2 * prod(node.taken(0)) * prod(node.taken(1)[1:])


def _product(node: Node) -> float:
    return 2 * node.given * (node.taken(0) or (1,))[-1]


def _gemm(node: Node) -> float:
    return 2.0 * node.given * node.taken(0)[0 if node.attributes.get("transA") else 1]


def _pool(node: Node) -> float:
    return float(node.given * prod(node.attributes["kernel_shape"]))


def _reduced(node: Node) -> float:
    return prod(node.taken(0))


def _local_response(node: Node) -> float:
    return node.given * (2 * int(node.attributes["size"]) + 15)


def _recurrent(node: Node) -> float:
    """Count one vector per step of the sequence, multiplied with both weight matrices."""
    steps = prod(node.taken(0)[:2])
    return 2 * steps * (prod(node.taken(1)) + prod(node.taken(2)))


def _vectors(node: Node, attribute: str) -> float:
    """Count each item's product with the vectors of an attribute."""
    values: Sequence[float] = node.attributes.get(attribute, ())
    return 2 * node.taken(0)[0] * len(values)
