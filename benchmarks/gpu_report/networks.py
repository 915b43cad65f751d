"""Convolutional networks with random weights: what they cost does not depend on the weights."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

_KERNEL: Final = 3
_COLOURS: Final = 3
_CLASSES: Final = 10
_OPSET, _IR = 17, 8


@dataclass(frozen=True, slots=True)
class ConvNet:
    """A stack of 3 x 3 convolutions, all of one width, with a linear layer at the end.

    Attributes:
        name: Name of the network.
        channels: Width.
        layers: Convolutions.
        size: Height and width of the images, pixels.
    """

    name: str
    channels: int
    layers: int
    size: int = 56

    @property
    def gmacs_per_item(self) -> float:
        """Multiply-accumulates of an image, 1e9."""
        inner = (self.layers - 1) * self.channels**2
        return self.size**2 * _KERNEL**2 * (_COLOURS * self.channels + inner) / 1e9

    def images(self, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return random images, shape (count, 3, size, size)."""
        rng = np.random.default_rng(0)
        return rng.standard_normal((count, _COLOURS, self.size, self.size)).astype(np.float32)

    def weights(self) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
        """Return random filters and the linear layer, of a size that keeps signals (He)."""
        rng = np.random.default_rng(self.channels)
        widths = [_COLOURS, *[self.channels] * self.layers]
        shapes: list[tuple[int, ...]] = [
            (after, before, _KERNEL, _KERNEL) for before, after in pairwise(widths)
        ]
        shapes.append((_CLASSES, self.channels))
        return [
            (rng.standard_normal(each) * np.sqrt(2 / np.prod(each[1:]))).astype(np.float32)
            for each in shapes
        ]


NETWORKS: Final = (
    ConvNet("conv-64", 64, 8),
    ConvNet("conv-128", 128, 12),
    ConvNet("conv-256", 256, 16),
)
"""0.8, 5.1 and 28 GMAC per image: below, at and above Inception-V3, the analytic model's own."""


def onnx_model(network: ConvNet) -> bytes:
    """Return a network as a serialized ONNX model: `image` to `scores`."""
    import onnx  # noqa: PLC0415 - only where ONNX Runtime computes

    helper, weights = onnx.helper, network.weights()
    nodes, last = [], "image"
    for index in range(network.layers):
        padded: dict[str, Any] = {"kernel_shape": [_KERNEL] * 2, "pads": [1] * 4}
        nodes.append(helper.make_node("Conv", [last, f"w{index}"], [f"c{index}"], **padded))
        last = f"r{index}"
        nodes.append(helper.make_node("Relu", [f"c{index}"], [last]))
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("Gemm", ["features", f"w{network.layers}"], ["scores"], transB=1),
    ]
    floats = onnx.TensorProto.FLOAT
    shape: list[str | int | None] = ["n", _COLOURS, network.size, network.size]
    graph = helper.make_graph(
        nodes,
        network.name,
        [helper.make_tensor_value_info("image", floats, shape)],
        [helper.make_tensor_value_info("scores", floats, ["n", _CLASSES])],
        [onnx.numpy_helper.from_array(each, f"w{n}") for n, each in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    model.ir_version = _IR
    serialized: bytes = model.SerializeToString()
    return serialized


def torch_model(network: ConvNet) -> Any:
    """Return the same network for PyTorch, on its first CUDA device."""
    import torch  # noqa: PLC0415 - the report runs without it

    nn, weights = torch.nn, network.weights()
    layers: list[Any] = []
    for each in weights[:-1]:
        conv = nn.Conv2d(each.shape[1], each.shape[0], _KERNEL, padding=1, bias=False)
        conv.weight.data = torch.from_numpy(each)
        layers += [conv, nn.ReLU()]
    linear = nn.Linear(network.channels, _CLASSES, bias=False)
    linear.weight.data = torch.from_numpy(weights[-1])
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear).cuda().eval()
