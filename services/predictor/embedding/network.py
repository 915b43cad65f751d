"""MiniLM as a network for ONNX Runtime: one text, matrices in 8 bits, few and large operators.

The package's file stores weights in 8 bits, and turns them into floats to compute. Here what is
multiplied with them is brought to 8 bits each time ("dynamic quantisation"): vectors keep a cosine
of 0.99 to those of floats. Query, key and value are one matrix; attention is one operator; nothing
is masked, for texts come one at a time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from services.predictor.embedding.weights import Dense, Floats, Norm, Weights

TAKES, GIVES = "pieces", "vector"
"""Names of what goes in, shape (1, pieces), int64, and of what comes out, shape (1, size)."""

_HEADS: Final = 12
_EPSILON: Final = 1e-12
_OPSET, _IR = 18, 9
_FUSED: Final = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


def network(weights: Weights, layers: int, most_pieces: int, centre: Floats) -> bytes:
    """Return a model that makes a vector of length 1 of a text's pieces: the mean of their states.

    Args:
        weights: Of MiniLM.
        layers: How many of its layers are gone through.
        most_pieces: Longest text.
        centre: Where vectors lie in the mean, shape (size,): they are told as seen from there.
    """
    graph = _Graph()
    states = _embedded(graph, weights, most_pieces)
    for layer in range(layers):
        states = _layer(graph, weights, f"encoder.layer.{layer}", states)
    mean = graph.node("ReduceMean", states, graph.value([1]), keepdims=0)
    seen = graph.node("Sub", graph.unit(mean), graph.value(centre.astype(np.float32)))
    graph.unit(seen, gives=GIVES)
    size = weights.words.shape[1]
    made = helper.make_graph(
        graph.nodes,
        "minilm",
        [helper.make_tensor_value_info(TAKES, TensorProto.INT64, [1, TAKES])],
        [helper.make_tensor_value_info(GIVES, TensorProto.FLOAT, [1, size])],
        graph.values,
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_FUSED, 1)]
    return bytes(helper.make_model(made, opset_imports=opsets, ir_version=_IR).SerializeToString())


class _Graph:
    """Nodes and values, named by their order."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.values: list[Any] = []

    def value(self, array: NDArray[Any] | list[int]) -> str:
        """Add a constant; return its name."""
        name = f"value_{len(self.values)}"
        self.values.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, operator: str, *inputs: str, gives: str = "", **attributes: Any) -> str:
        """Add an operator with one output; return the name of that."""
        output = gives or f"state_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def cut(self, floats: str) -> tuple[str, str, str]:
        """Bring floats to 8 bits; return the names of bytes, scale and zero."""
        names = (f"{floats}_bytes", f"{floats}_scale", f"{floats}_zero")
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [floats], names))
        return names

    def unit(self, vector: str, gives: str = "") -> str:
        """Bring a vector to length 1."""
        return self.node("LpNormalization", vector, gives=gives, axis=1, p=2)

    def norm(self, states: str, norm: Norm) -> str:
        """Normalise each piece's state."""
        scales, offsets = self.value(norm.scales), self.value(norm.offsets)
        return self.node("LayerNormalization", states, scales, offsets, axis=-1, epsilon=_EPSILON)

    def product(self, states: str, dense: Dense) -> str:
        """Multiply in 8 bits."""
        bytes_, scales, offsets = (self.value(each) for each in _coarser(dense))
        return self.node(
            "DynamicQuantizeMatMul", states, bytes_, scales, "", offsets, domain=_FUSED
        )

    def attention(self, states: str, dense: Dense) -> str:
        """Let pieces look at one another.

        Args:
            states: Of the pieces.
            dense: Makes queries, keys and values of them, side by side.
        """
        cut, scale, zero = self.cut(states)
        bytes_, scales, offsets = (self.value(each) for each in _coarser(dense))
        inputs = (cut, bytes_, offsets, scale, scales, "", zero)
        return self.node("QAttention", *inputs, domain=_FUSED, num_heads=_HEADS)


def _embedded(graph: _Graph, weights: Weights, most_pieces: int) -> str:
    """Look up what stands for each piece in its place; only these rows become floats."""
    rows = graph.node("Gather", graph.value(weights.words), TAKES)
    scales = graph.node("Gather", graph.value(weights.word_scales), TAKES)
    words = graph.node("Mul", graph.node("Cast", rows, to=TensorProto.FLOAT), scales)
    count = graph.node("Shape", TAKES, start=1, end=2)
    places = graph.value(weights.places[:most_pieces])
    added = graph.node("Add", words, graph.node("Slice", places, graph.value([0]), count))
    return graph.norm(added, weights.norms["embeddings.LayerNorm"])


def _layer(graph: _Graph, weights: Weights, name: str, states: str) -> str:
    dense, norms = weights.dense, weights.norms
    parts = [dense[f"{name}.attention.self.{part}"] for part in ("query", "key", "value")]
    joined = Dense(*(np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)))
    seen = graph.product(graph.attention(states, joined), dense[f"{name}.attention.output.dense"])
    # One operator for sum and normalisation exists, and is the slower one: 10 %.
    seen = graph.norm(graph.node("Add", seen, states), norms[f"{name}.attention.output.LayerNorm"])
    wide = graph.node(
        "Gelu", graph.product(seen, dense[f"{name}.intermediate.dense"]), domain=_FUSED
    )
    narrow = graph.product(wide, dense[f"{name}.output.dense"])
    return graph.norm(graph.node("Add", narrow, seen), norms[f"{name}.output.LayerNorm"])


def _coarser(dense: Dense) -> Dense:
    """Drop a bit: CPUs without VNNI add two products in 16 bits, where eight would overflow."""
    return Dense(np.rint(dense.bytes_ / 2).astype(np.int8), 2 * dense.scales, dense.offsets)
