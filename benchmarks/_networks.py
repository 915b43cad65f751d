"""Real ONNX networks that PyPI packages bring: light models inside `onnx`, the MiniLM encoder."""

from collections.abc import Iterator
from importlib import resources

import numpy as np
import onnx
from onnx import numpy_helper

from services.kit.operators.onnx_reader import load
from services.kit.package_data import package_file
from services.predictor.embedding.minilm import RESOURCE, SHA256


def light_names() -> tuple[str, ...]:
    """Return the names of the light models: architectures of the model zoo, without its weights."""
    folder = resources.files("onnx") / "backend/test/data/light"
    files = sorted(each.name for each in folder.iterdir() if each.name.endswith(".onnx"))
    return tuple(name.removeprefix("light_").removesuffix(".onnx") for name in files)


def light(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return a light model with random weights in place of its constant ones.

    With constant weights all channels of a layer are equal, and a network that mixed them up would
    answer the same.
    """
    with resources.as_file(resources.files("onnx") / "backend/test/data/light") as folder:
        model = load(folder / f"light_{name}.onnx")
    drawn = dict(_drawn(model, np.random.default_rng(seed)))
    nodes = [node for node in model.graph.node if node.output[0] not in drawn]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(drawn.values())
    model.ir_version = 8  # weights need not be inputs
    return model


def minilm() -> onnx.ModelProto:
    """Return the encoder that the predictor's cache uses."""
    return load(package_file(RESOURCE, SHA256))


def _drawn(
    model: onnx.ModelProto, rng: np.random.Generator
) -> Iterator[tuple[str, onnx.TensorProto]]:
    shapes = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = tuple(int(size) for size in shapes[node.input[0]])
            values = rng.standard_normal(shape)
            if len(shape) > 1:
                values *= np.sqrt(2 / np.prod(shape[1:]))  # signals stay as large as they are (He)
            else:
                values = 0.5 + np.abs(values) / 2  # variances are positive
            yield node.output[0], numpy_helper.from_array(values.astype(np.float32), node.output[0])
