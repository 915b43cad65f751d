"""examples/vision: what its network and its images are made into."""

import importlib.util
from types import ModuleType

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.support.paths import ROOT

NETWORK = """
<ir_version: 10, opset_import: ["": 21]>
net (float[N, 3, 4, 4] x) => (float[N, 3, 4, 4] y)
<float[3, 3, 1, 1] w, float[3] one, float[3] zero>
{
    first = Conv(x, w)
    a = BatchNormalization(first, one, zero, zero, one)
    second = Conv(a, w)
    b = BatchNormalization(second, one, zero, zero, one)
    sum = Add(a, b)
    y = Relu(sum)
}
"""


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    """The example's program."""
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "examples/vision/prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_block_that_is_left_out_is_computed_no_more(prepare: ModuleType) -> None:
    model = onnx.parser.parse_model(NETWORK)
    smaller = prepare.without(model, 0)

    assert [node.op_type for node in smaller.graph.node] == ["Conv", "BatchNormalization", "Relu"]
    assert len(model.graph.node) == 6, "the network itself stays as it is"


def test_equal_seeds_draw_equal_lines(prepare: ModuleType) -> None:
    images, labels = prepare.lines(6, seed=0)
    again, _ = prepare.lines(6, seed=0)

    assert images.shape == (6, 3, prepare.HEIGHT, prepare.WIDTH)
    assert np.abs(images).max() <= 1
    assert np.array_equal(images, again)
    assert {*labels} == {0, 1}
