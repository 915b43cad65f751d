"""Annotates a model with the types and shapes of its tensors, so that it can be split."""

from collections.abc import Iterable
from typing import Final

import numpy as np
import onnx
from onnx import helper

from services.kit.operators.core.graph import Graph, Tensor

_FIRST_IR_WITH_INNER_WEIGHTS: Final = 4
"""Before it, weights had to be inputs, too, and requests could override them."""


def described(model: onnx.ModelProto, graph: Graph, names: Iterable[str]) -> onnx.ModelProto:
    """Return a model with datatypes and sizes of inner tensors.

    Args:
        model: The model of `graph`; not changed.
        graph: Types and shapes of the tensors.
        names: Names of the tensors; those of the model's inputs and outputs are skipped.
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
    """Return the sizes; free ones have names, the batch the same name everywhere."""
    sizes: list[int | str] = []
    for axis, (size, free) in enumerate(zip(tensor.shape, tensor.free, strict=True)):
        named = "batch" if tensor.batched and not axis else f"{tensor.name}.{axis}"
        sizes.append(named if free else size)
    return sizes
