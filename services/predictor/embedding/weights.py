"""MiniLM's weights from the package's file, by the names of its layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

_PREFIX: Final = "inner."
_EMBEDDINGS: Final = "embeddings."
_STORED, _SCALES = ".weight_q", ".weight_scale"

Bytes = NDArray[np.int8]
Floats = NDArray[np.float32]


class Dense(NamedTuple):
    """An 8-bit dense layer: inputs @ (bytes * scales) + offsets.

    Attributes:
        bytes_: Quantised weights, shape (inputs, outputs).
        scales: Scale of each output, shape (outputs,).
        offsets: Biases, shape (outputs,).
    """

    bytes_: Bytes
    scales: Floats
    offsets: Floats


class Norm(NamedTuple):
    """Scales and offsets of a layer normalisation, shape (size,) each."""

    scales: Floats
    offsets: Floats


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of MiniLM.

    Attributes:
        words: 8-bit embeddings of the vocabulary's pieces, shape (pieces, size).
        word_scales: Scale of each row, shape (pieces, 1).
        positions: Embeddings of the positions in a text, shape (512, size).
        norms: Layer normalisations by name, "encoder.layer.0.output.LayerNorm" for example.
        dense: Dense layers by name, "encoder.layer.0.attention.self.query" for
            example.
    """

    words: Bytes
    word_scales: Floats
    positions: Floats
    norms: Mapping[str, Norm]
    dense: Mapping[str, Dense]


def weights(file: Path) -> Weights:
    """Return the weights of a file.

    Raises:
        ValueError: The file has no 8-bit weights.
    """
    graph = onnx.load(file).graph
    values = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    dense = _dense(graph, values)
    if not dense:
        raise ValueError(f"{file}: no 8-bit weights")
    named = {name.removeprefix(_PREFIX): value for name, value in values.items()}
    places = f"{_EMBEDDINGS}position_embeddings"
    words = f"{_EMBEDDINGS}word_embeddings"
    of_one_text = named[f"{_EMBEDDINGS}token_type_embeddings.weight"][0]
    norms = [name.removesuffix(".weight") for name in named if name.endswith("LayerNorm.weight")]
    return Weights(
        words=named[words + _STORED],
        word_scales=named[words + _SCALES],
        positions=named[places + _STORED] * named[places + _SCALES] + of_one_text,
        norms={name: Norm(named[f"{name}.weight"], named[f"{name}.bias"]) for name in norms},
        dense=dense,
    )


def _dense(graph: Any, values: Mapping[str, NDArray[Any]]) -> dict[str, Dense]:
    """Return the dense layers by the names of their biases, for the matrices have no names.

    The file converts bytes to floats (Cast, Mul), multiplies (MatMul), and adds biases (Add).
    """
    cast = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast"}
    scaled = {
        node.output[0]: (cast[node.input[0]], node.input[1])
        for node in graph.node
        if node.op_type == "Mul" and cast.get(node.input[0]) in values
    }
    products = {
        node.output[0]: scaled[node.input[1]]
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in scaled
    }
    found = {}
    for node in graph.node:
        if node.op_type == "Add" and (made := products.keys() & set(node.input)):
            bytes_, scales = products[made.pop()]
            (offsets,) = values.keys() & set(node.input)
            name = offsets.removeprefix(_PREFIX).removesuffix(".bias")
            found[name] = Dense(values[bytes_], values[scales].reshape(-1), values[offsets])
    return found
