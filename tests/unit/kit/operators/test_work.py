import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._networks import light, minilm
from services.kit.operators.core.clock_sensitivity import FREE, Cost, total
from services.kit.operators.core.work import Node, Operand, flops, moved_bytes, work
from services.kit.operators.onnx_reader import read
from services.kit.operators.random_inputs import Sizes

times = st.floats(1e-6, 1.0)


def operand(*shape: int, item_bytes: int = 4, discrete: bool = False) -> Operand:
    return Operand("int64" if discrete else "float32", shape, item_bytes)


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


@given(st.lists(st.tuples(times, st.floats(1.0, 2.0)), min_size=1, max_size=8))
def test_the_score_of_several_is_the_mean_weighted_by_time(each: list[tuple[float, float]]) -> None:
    costs = [Cost(latency_s, latency_s * longer) for latency_s, longer in each]
    mean = sum(c.score * c.latency_s for c in costs) / sum(c.latency_s for c in costs)

    assert total(costs).score == pytest.approx(mean, abs=1e-9)
    assert 0 <= total([*costs, FREE]).clock_sensitivity <= 1


def test_the_order_of_operators_is_a_topological_order_of_the_dataflow() -> None:
    graph = read(minilm(), "minilm", Sizes(batch=2, other=16))

    places = range(-1, len(graph.operators) + 1)
    assert list(nx.lexicographical_topological_sort(graph.dataflow)) == list(places)
