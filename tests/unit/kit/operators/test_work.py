from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from benchmarks._networks import light, minilm
from services.kit.errors import InvalidArgument, NotFound
from services.kit.operators.core.clock_sensitivity import FREE, Cost, total
from services.kit.operators.core.work import Node, Operand, flops, moved_bytes, work
from services.kit.operators.onnx_reader import load, read
from services.kit.operators.random_inputs import Sizes

FLOAT = TensorProto.FLOAT
times = st.floats(1e-6, 1.0)


def operand(*shape: int, item_bytes: int = 4, discrete: bool = False) -> Operand:
    return Operand(shape, prod(shape) * item_bytes, discrete)


def test_a_convolution_multiplies_each_output_with_one_filter() -> None:
    node = Node(
        "Conv", {"group": 2}, (operand(1, 8, 10, 10), operand(6, 4, 3, 3)), (operand(1, 6, 8, 8),)
    )

    assert flops(node) == 2 * (6 * 8 * 8) * (4 * 3 * 3)
    assert moved_bytes(node) == 4 * (800 + 216 + 384)


def test_a_matrix_product_sums_over_the_inner_size() -> None:
    product = Node("MatMul", {}, (operand(2, 3, 5), operand(5, 7)), (operand(2, 3, 7),))
    turned = Node("Gemm", {"transA": 1}, (operand(5, 3), operand(5, 7)), (operand(3, 7),))

    assert flops(product) == 2 * (2 * 3 * 7) * 5
    assert flops(turned) == 2 * (3 * 7) * 5


def test_a_gather_reads_what_it_gives_and_not_the_whole_table() -> None:
    node = Node("Gather", {}, (operand(30_000, 384), operand(1, 8)), (operand(1, 8, 384),))

    assert moved_bytes(node) == 2 * 8 * 384 * 4


def test_views_and_arithmetic_on_shapes_launch_no_kernel() -> None:
    view = Node("Reshape", {}, (operand(8, 64), operand(2)), (operand(4, 128),))
    shape = Node("Concat", {}, (operand(1, item_bytes=8, discrete=True),) * 2,
                 (operand(2, item_bytes=8, discrete=True),))  # fmt: skip

    assert work(view).free
    assert work(shape).free
    assert not work(Node("Relu", {}, (operand(1),), (operand(1),))).free


def test_squeezenet_takes_the_operations_that_its_authors_say() -> None:
    """Version 1.1: "0.72 GFLOPS/image" (github.com/forresti/SqueezeNet)."""
    graph = read(light("squeezenet"), "squeezenet", Sizes())

    assert sum(each.work.flops for each in graph.operators) == pytest.approx(0.72e9, rel=0.03)
    assert graph.batch_size == 1
    assert not graph.batches


def test_a_read_graph_knows_which_sizes_follow_the_inputs() -> None:
    graph = read(minilm(), "minilm", Sizes(batch=2, other=16))

    (output,) = (graph.tensors[name] for name in graph.outputs)
    assert (output.datatype, output.shape, output.declared) == (
        "float32",
        (2, 16, 384),
        (-1, -1, 384),
    )
    assert output.batched
    assert graph.batches


def test_every_tensor_is_made_before_it_is_used_and_kept_until_then() -> None:
    graph = read(minilm(), "minilm", Sizes(batch=2, other=16))

    made = set(graph.inputs)
    for index, operator in enumerate(graph.operators):
        assert made.issuperset(operator.inputs)
        assert all(graph.spans[name][1] >= index for name in operator.inputs)
        made.update(operator.outputs)
    assert made.issuperset(graph.outputs)


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
    with pytest.raises(InvalidArgument, match=r"beside\.onnx: its weights beside it"):
        load(tmp_path / "beside.onnx")
    with pytest.raises(InvalidArgument, match="Is a directory"):
        load(tmp_path)
    with pytest.raises(NotFound, match=r"gone\.onnx"):
        load(tmp_path / "gone.onnx")
    with pytest.raises(InvalidArgument, match="no ONNX model"):
        load(tmp_path / "text.onnx")
    with pytest.raises(InvalidArgument, match="If"):
        load(tmp_path / "if.onnx")


@given(st.lists(st.tuples(times, st.floats(1.0, 2.0)), min_size=1, max_size=8))
def test_the_score_of_several_is_the_mean_weighted_by_time(each: list[tuple[float, float]]) -> None:
    costs = [Cost(latency_s, latency_s * longer) for latency_s, longer in each]
    mean = sum(c.score * c.latency_s for c in costs) / sum(c.latency_s for c in costs)

    assert total(costs).score == pytest.approx(mean, abs=1e-9)
    assert 0 <= total([*costs, FREE]).clock_sensitivity <= 1
