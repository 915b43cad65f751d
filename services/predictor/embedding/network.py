"""MiniLM as a network for ONNX Runtime: one text, matrices in 8 bits, few and large operators.

The package's file stores 8-bit weights and converts them to floats. Here the activations are
quantised to 8 bits for each product (dynamic quantisation): vectors keep a cosine of 0.99 to those
of floats. Query, key and value are one matrix; attention is one operator; there is no mask, for
texts come one at a time.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from services.predictor.embedding.weights import Dense, Floats, Norm, Weights

INPUT, OUTPUT = "pieces", "vector"
"""Names of the input, shape (1, pieces), int64, and of the output, shape (1, size)."""

_HEADS: Final = 12
_EPSILON: Final = 1e-12
_OPSET, _IR = 18, 9
_FUSED: Final = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


def network(weights: Weights, layers: int, max_pieces: int, centre: Floats) -> bytes:
    """Return a model whose output is the mean of the pieces' states, centred, with length 1.

    Args:
        weights: Weights of MiniLM.
        layers: Number of layers that run.
        max_pieces: Length of the longest text.
        centre: Mean vector that is subtracted, shape (size,).
    """
    graph = _Graph()
    states = _embedded(graph, weights, max_pieces)
    for layer in range(layers):
        states = _layer(graph, weights, f"encoder.layer.{layer}", states)
    mean = graph.node("ReduceMean", states, graph.value([1]), keepdims=0)
    seen = graph.node("Sub", graph.unit(mean), graph.value(centre.astype(np.float32)))
    graph.unit(seen, output_name=OUTPUT)
    size = weights.words.shape[1]
    made = helper.make_graph(
        graph.nodes,
        "minilm",
        [helper.make_tensor_value_info(INPUT, TensorProto.INT64, [1, INPUT])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [1, size])],
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

    def node(self, operator: str, *inputs: str, output_name: str = "", **attributes: Any) -> str:
        """Add an operator with one output; return the name of that."""
        output = output_name or f"state_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def quantise(self, floats: str) -> tuple[str, str, str]:
        """Quantise floats to 8 bits; return the names of bytes, scale and zero point."""
        names = (f"{floats}_bytes", f"{floats}_scale", f"{floats}_zero")
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [floats], names))
        return names

    def unit(self, vector: str, output_name: str = "") -> str:
        """Scale a vector to length 1."""
        return self.node("LpNormalization", vector, output_name=output_name, axis=1, p=2)

    def norm(self, states: str, norm: Norm) -> str:
        """Add a layer normalisation."""
        scales, offsets = self.value(norm.scales), self.value(norm.offsets)
        return self.node("LayerNormalization", states, scales, offsets, axis=-1, epsilon=_EPSILON)

    def product(self, states: str, dense: Dense) -> str:
        """Add an 8-bit matrix product."""
        bytes_, scales, offsets = (self.value(each) for each in _halved(dense))
        return self.node(
            "DynamicQuantizeMatMul", states, bytes_, scales, "", offsets, domain=_FUSED
        )

    def attention(self, states: str, dense: Dense) -> str:
        """Add self-attention over the pieces.

        Args:
            states: States of the pieces.
            dense: Projection to queries, keys and values, side by side.
        """
        quantised, scale, zero = self.quantise(states)
        bytes_, scales, offsets = (self.value(each) for each in _halved(dense))
        inputs = (quantised, bytes_, offsets, scale, scales, "", zero)
        return self.node("QAttention", *inputs, domain=_FUSED, num_heads=_HEADS)


def _embedded(graph: _Graph, weights: Weights, max_pieces: int) -> str:
    """Look up word and position embeddings; only these rows are converted to floats."""
    rows = graph.node("Gather", graph.value(weights.words), INPUT)
    scales = graph.node("Gather", graph.value(weights.word_scales), INPUT)
    words = graph.node("Mul", graph.node("Cast", rows, to=TensorProto.FLOAT), scales)
    count = graph.node("Shape", INPUT, start=1, end=2)
    positions = graph.value(weights.positions[:max_pieces])
    added = graph.node("Add", words, graph.node("Slice", positions, graph.value([0]), count))
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


def _halved(dense: Dense) -> Dense:
    """Use 7 bits: CPUs without VNNI add two products in 16 bits, where 8 bits would overflow."""
    return Dense(np.rint(dense.bytes_ / 2).astype(np.int8), 2 * dense.scales, dense.offsets)
