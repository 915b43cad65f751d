"""Writes into a model what a run told about its tensors, so that it can be taken apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import onnx
from onnx import helper

from services.kit.operators.core.graph import Graph, Tensor

_FIRST_IR_WITH_INNER_WEIGHTS: Final = 4
"""Before it, a weight had to be an input too, and could be overridden by a request."""


def described(model: onnx.ModelProto, graph: Graph, names: Iterable[str]) -> onnx.ModelProto:
    """Return a model with datatypes and sizes of inner tensors.

    Args:
        model: What was read as `graph`; it is not changed.
        graph: Knows them.
        names: The tensors; the model's own inputs and outputs stay as they are described.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.ir_version = max(model.ir_version, _FIRST_IR_WITH_INNER_WEIGHTS)
    wanted = sorted(set(names) - set(graph.inputs) - set(graph.outputs))
    others = [each for each in model.graph.value_info if each.name not in wanted]
    del made.graph.value_info[:]
    made.graph.value_info.extend(others)
    made.graph.value_info.extend(_value(graph.tensors[name]) for name in wanted)
    return made


def _value(tensor: Tensor) -> onnx.ValueInfoProto:
    if not tensor.datatype:
        return onnx.ValueInfoProto(name=tensor.name)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.datatype))
    return helper.make_tensor_value_info(tensor.name, kind, _sizes(tensor))


def _sizes(tensor: Tensor) -> list[int | str]:
    """Return the sizes; those that are free have names, the batch everywhere the same."""
    sizes: list[int | str] = []
    for axis, (size, free) in enumerate(zip(tensor.shape, tensor.free, strict=True)):
        named = "batch" if tensor.batched and not axis else f"{tensor.name}.{axis}"
        sizes.append(named if free else size)
    return sizes
