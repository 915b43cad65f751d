"""Networks as they are read from ONNX files."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks._networks import light
from services.kit.errors import InvalidArgument, NotFound
from services.kit.operators.onnx_reader import load, read, require_flat
from services.kit.operators.random_inputs import Sizes

FLOAT = TensorProto.FLOAT


def test_a_file_with_its_operators_in_disorder_is_read_in_order(tmp_path: Path) -> None:
    model = light("squeezenet")
    model.graph.node.sort(key=lambda node: node.output[0])
    onnx.save(model, tmp_path / "m.onnx")

    made = {each.name for each in model.graph.initializer}
    made.update(each.name for each in model.graph.input)
    for node in load(tmp_path / "m.onnx").graph.node:
        assert made.issuperset(filter(None, node.input))
        made.update(node.output)


def test_operators_that_wait_for_one_another_are_refused(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, FLOAT, [4]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), tmp_path / "m.onnx")

    with pytest.raises(InvalidArgument, match="in a cycle"):
        load(tmp_path / "m.onnx")


def test_what_depends_on_no_input_is_a_weight(tmp_path: Path) -> None:
    """A constant that the file computes is no operator of the network."""
    x, y = (helper.make_tensor_value_info(name, FLOAT, ["n", 4]) for name in "xy")
    shape = numpy_helper.from_array(np.array([4, 4], np.int64), "shape")
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["weight"]),
        helper.make_node("MatMul", ["x", "weight"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [shape])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save(model, tmp_path / "m.onnx")

    found = read(load(tmp_path / "m.onnx"), "m", Sizes())

    assert [each.type for each in found.operators] == ["MatMul"]
    assert found.constants == {"weight": 64}


def test_files_that_hold_no_readable_network_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no protobuf at all")
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", FLOAT, [1])
    one = numpy_helper.from_array(np.ones(1, np.float32))
    branch = helper.make_graph([helper.make_node("Constant", [], ["y"], value=one)], "b", [], [y])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", [condition], [y])), tmp_path / "if.onnx"
    )

    (tmp_path / "empty.onnx").touch()
    weights = numpy_helper.from_array(np.ones(1, np.float32), "w")
    added = helper.make_node("Add", ["w", "w"], ["y"])
    beside = helper.make_model(helper.make_graph([added], "g", [], [y], initializer=[weights]))
    onnx.save_model(
        beside, tmp_path / "beside.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    (tmp_path / "w").unlink()

    with pytest.raises(InvalidArgument, match="it has no operators"):
        load(tmp_path / "empty.onnx")
    with pytest.raises(InvalidArgument, match=r"beside\.onnx: its files of weights"):
        load(tmp_path / "beside.onnx")
    with pytest.raises(InvalidArgument, match="Is a directory"):
        load(tmp_path)
    with pytest.raises(NotFound, match=r"gone\.onnx"):
        load(tmp_path / "gone.onnx")
    with pytest.raises(InvalidArgument, match="not an ONNX model"):
        load(tmp_path / "text.onnx")
    branches = load(tmp_path / "if.onnx")
    with pytest.raises(InvalidArgument, match=r"if\.onnx: If '' has a subgraph"):
        require_flat(branches, tmp_path / "if.onnx")
