"""What the package's file knows: MiniLM's weights, by the names of its layers."""

from __future__ import annotations

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
    """A matrix in 8 bits and what is added to its products: inputs @ (bytes * scales) + offsets.

    Attributes:
        bytes_: Shape (inputs, outputs).
        scales: Of each output, shape (outputs,).
        offsets: Shape (outputs,).
    """

    bytes_: Bytes
    scales: Floats
    offsets: Floats


class Norm(NamedTuple):
    """What a layer normalisation multiplies with and adds, shape (size,) each."""

    scales: Floats
    offsets: Floats


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of MiniLM.

    Attributes:
        words: A row per piece of the vocabulary, in 8 bits, shape (pieces, size).
        word_scales: Of each row, shape (pieces, 1).
        places: What is added for a piece's place in the text, shape (512, size).
        norms: By name, "encoder.layer.0.output.LayerNorm" for example.
        dense: By name, "encoder.layer.0.attention.self.query" for example.
    """

    words: Bytes
    word_scales: Floats
    places: Floats
    norms: Mapping[str, Norm]
    dense: Mapping[str, Dense]


def weights(file: Path) -> Weights:
    """Return the weights of a file.

    Raises:
        ValueError: It stores no weights in 8 bits.
    """
    graph = onnx.load(file).graph
    values = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    dense = _dense(graph, values)
    if not dense:
        raise ValueError(f"{file}: no weights in 8 bits")
    named = {name.removeprefix(_PREFIX): value for name, value in values.items()}
    places = f"{_EMBEDDINGS}position_embeddings"
    words = f"{_EMBEDDINGS}word_embeddings"
    of_one_text = named[f"{_EMBEDDINGS}token_type_embeddings.weight"][0]
    norms = [name.removesuffix(".weight") for name in named if name.endswith("LayerNorm.weight")]
    return Weights(
        words=named[words + _STORED],
        word_scales=named[words + _SCALES],
        places=named[places + _STORED] * named[places + _SCALES] + of_one_text,
        norms={name: Norm(named[f"{name}.weight"], named[f"{name}.bias"]) for name in norms},
        dense=dense,
    )


def _dense(graph: Any, values: Mapping[str, NDArray[Any]]) -> dict[str, Dense]:
    """Return the matrices, by the names of their offsets: they have none of their own.

    The file makes floats of bytes (Cast, Mul), multiplies with them (MatMul), and adds offsets.
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
