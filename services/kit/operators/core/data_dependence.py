"""Operators of a network whose output sizes depend on what its inputs hold, not on their sizes.

The rows of such an output are things found (detections, spans, distinct values): nothing says which
rows belong to which item of a batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SIZED_BY: Final[Mapping[str, Sequence[int] | None]] = {
    "AffineGrid": (1,),
    "BeamSearch": None,
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "DictVectorizer": None,
    "Expand": (1,),
    "GreedySearch": None,
    "If": (0,),
    "ImageDecoder": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "NonMaxSuppression": None,
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": None,
    "RemovePadding": None,
    "Reshape": (1,),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Sampling": None,
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "StringNormalizer": (0,),
    "StringSplit": (0,),
    "Tile": (1, 2),
    "Tokenizer": (0,),
    "TopK": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    "WhisperBeamSearch": None,
}
"""Inputs whose values decide how large the outputs of an operator are, or what runs; None: all.

Sources: ONNX, "Operators" (ai.onnx 1 to 26, ai.onnx.ml); ONNX Runtime, "Contributed operators".
"""
_OF_SIZES_ONLY: Final = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True)
class Body:
    """A graph, a branch, the body of a loop, or a function. Inputs and outputs are names."""

    nodes: Sequence["GraphNode"]
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An operator in its graph. Attributes: type, inputs, outputs (names; "": omitted), bodies."""

    type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    bodies: Sequence[Body] = ()


class DataDependent(Exception):
    """An operator's output sizes depend on the network's inputs; the message is its type."""


def data_dependent(graph: Body, functions: Mapping[str, Body]) -> str:
    """Return the type of an operator whose output sizes depend on the inputs' data; "": none.

    Args:
        graph: The network.
        functions: Operators that the file defines, by type.
    """
    try:
        _follow(graph, set(graph.inputs), functions)
    except (DataDependent, RecursionError) as error:
        return str(error) if isinstance(error, DataDependent) else "a function that calls itself"
    return ""


def _follow(body: Body, data: set[str], functions: Mapping[str, Body]) -> None:
    """Add to `data` the names of all tensors that hold data of the inputs, or depend on it.

    Raises:
        DataDependent: Sizes depend on it.
    """
    grown = -1
    while grown != len(data):  # once, where the nodes are in order
        grown = len(data)
        for node in body.nodes:
            data.update(_holding(node, data, functions))


def _holding(node: GraphNode, data: set[str], functions: Mapping[str, Body]) -> Iterable[str]:
    """Return the outputs of a node that depend on `data`."""
    given = [name in data for name in node.inputs]
    if any(given[place] for place in _deciding(node)):
        raise DataDependent(node.type)
    if (function := functions.get(node.type)) is not None:
        inside = {name for name, of in zip(function.inputs, given, strict=False) if of}
        _follow(function, inside, functions)
        pairs = zip(node.outputs, function.outputs, strict=False)
        return [name for name, inner in pairs if inner in inside]
    touched = any(given)
    for inner in node.bodies:
        carried = inner.inputs[2:] if node.type == "Loop" else inner.inputs
        data.update(carried if touched else ())
        _follow(inner, data, functions)
        if node.type == "Loop" and inner.outputs and inner.outputs[0] in data:
            raise DataDependent(node.type)
        touched |= any(name in data for name in inner.outputs)
    return node.outputs if touched and node.type not in _OF_SIZES_ONLY else ()


def _deciding(node: GraphNode) -> Iterable[int]:
    places = _SIZED_BY.get(node.type, (1,) if node.type.startswith("Reduce") else ())
    count = len(node.inputs)
    return range(count) if places is None else (place for place in places if place < count)
