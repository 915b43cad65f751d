"""Networks of the same task that cost real time: two layers of convolution, and a linear one.

Convolutions with random weights that are not trained are good features (A. Saxe et al., "On Random
Weights and Unsupervised Feature Learning", ICML'11), so that only the linear layer is fitted, by
ridge regression: seconds, not hours. Wider networks are more accurate, and cost more: 0.6, 9.5 and
150 million multiply-accumulates per image with 16, 64 and 256 filters.
"""

from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from services.local.demo.digits import split

GROWTH: Final = 4
"""Filters of the second layer over those of the first."""

RIDGE: Final = 1e-2
"""Of the features' mean square: keeps the fit from following single images."""

_OPSET, _IR = 21, 10
_CHUNK: Final = 98

Array = NDArray[np.float32]


def build(filters: int) -> bytes:
    """Return a network with so many filters in its first layer, as a serialized ONNX model."""
    images, labels = split().training_images, split().training_labels
    weights = _random(filters)
    features = _features(weights, images)
    mean = features.mean(axis=0)
    targets = np.eye(10, dtype=np.float32)[labels] - 0.1
    fit = _ridge(features - mean, targets)
    bias = (0.1 - mean @ fit).astype(np.float32)
    return _model({**weights, "fit": fit, "bias": bias})


def _random(filters: int) -> dict[str, Array]:
    """Return random filters, seeded, of a size that keeps signals as large as they are (He)."""
    rng = np.random.default_rng(filters)
    shapes = {"first": (filters, 1, 3, 3), "second": (GROWTH * filters, filters, 3, 3)}
    return {
        name: (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
        for name, shape in shapes.items()
    }


def _features(weights: dict[str, Array], images: Array) -> Array:
    session = onnxruntime.InferenceSession(_model(weights), providers=["CPUExecutionProvider"])
    chunks = np.array_split(images, len(images) // _CHUNK)
    return np.concatenate([session.run(["features"], {"image": chunk})[0] for chunk in chunks])


def _ridge(features: Array, targets: Array) -> Array:
    """Return the weights of least squares; in the dual, as images are fewer than features."""
    kernel = features @ features.T
    kernel[np.diag_indices_from(kernel)] += RIDGE * np.trace(kernel) / len(kernel)
    fit: Array = (features.T @ np.linalg.solve(kernel, targets)).astype(np.float32)
    return fit


def _model(weights: dict[str, Array]) -> bytes:
    """Return the network; without a linear layer it ends at the features."""
    nodes = [
        helper.make_node("Div", ["image", "brightest"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "pixels"], ["picture"]),
        *_layer("picture", "first", "low"),
        *_layer("low", "second", "high"),
        helper.make_node("MaxPool", ["high"], ["pooled"], kernel_shape=[3, 3], strides=[3, 3]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
    ]
    outputs = [helper.make_tensor_value_info("features", TensorProto.FLOAT, [None, None])]
    if "fit" in weights:
        nodes += [
            helper.make_node("Gemm", ["features", "fit", "bias"], ["scores"]),
            helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        ]
        outputs = [
            helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, 10]),
        ]
    constants: dict[str, NDArray[Any]] = {
        **weights,
        "brightest": np.array(16, np.float32),
        "pixels": np.array([-1, 1, 8, 8], np.int64),
    }
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, [None, 64])]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "convnet", inputs, outputs, tensors)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR
    )
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized


def _layer(source: str, weights: str, name: str) -> list[onnx.NodeProto]:
    convolved = f"{name}.convolved"
    return [
        helper.make_node(
            "Conv", [source, weights], [convolved], kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Relu", [convolved], [name]),
    ]
