"""Real ONNX models with real faults: what they do is done by ONNX Runtime, not by the test."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def _save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[onnx.TensorProto] = (),
    *,
    weights: str = "",
) -> Path:
    """Write a model from "x" to "y", both FP32 of shape (n, 2)."""
    graph = helper.make_graph(
        nodes,
        "faulty",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", None])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    if weights:
        onnx.save(model, path, save_as_external_data=True, location=weights)
    else:
        onnx.save(model, path)
    return path


def always_nan(path: Path) -> Path:
    """Y = x * NaN: a network whose weights are spoilt."""
    return _save(
        path,
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [numpy_helper.from_array(np.array([np.nan], np.float32), "w")],
    )


def square_root(path: Path) -> Path:
    """Y = sqrt(x): NaN for negative inputs, and for those only."""
    return _save(path, [helper.make_node("Sqrt", ["x"], ["y"])])


def mapped_weights(path: Path) -> Path:
    """Y = w[x], with w in a file beside it that is mapped into memory, not read.

    Truncate the file (`path` with suffix .weights) while the model is loaded, and the next
    inference meets pages that are gone: SIGBUS.
    """
    nodes = [
        helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "index"], ["y"]),
    ]
    weights = numpy_helper.from_array(np.arange(1 << 20, dtype=np.float32), "w")
    return _save(path, nodes, [weights], weights=path.with_suffix(".weights").name)


def hoarder(path: Path) -> Path:
    """Y = x + 0 * (the sum of a tensor of x[0, 0] MiB): its arena never gives memory back."""

    def vector(values: Sequence[float], name: str, kind: type = np.int64) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, kind), name)

    nodes = [
        helper.make_node("Slice", ["x", "first", "second"], ["corner"]),
        helper.make_node("Reshape", ["corner", "flat"], ["mib"]),
        helper.make_node("Cast", ["mib"], ["mib_int"], to=TensorProto.INT64),
        helper.make_node("Mul", ["mib_int", "per_mib"], ["count"]),
        helper.make_node("Expand", ["one", "count"], ["big"]),
        helper.make_node("Mul", ["big", "zero"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["nothing"], keepdims=0),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    constants = [
        vector([0, 0], "first"),
        vector([1, 1], "second"),
        vector([1], "flat"),
        vector([1 << 18], "per_mib"),
        vector([1.0], "one", np.float32),
        vector([0.0], "zero", np.float32),
    ]
    return _save(path, nodes, constants)
