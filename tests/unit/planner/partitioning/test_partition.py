"""Cuts, clusters and stages on drawn graphs; `test_partitioned_networks` does it on real ones."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import networkx as nx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.muserve.planning.cut_networks import partitions
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.operators.core.clock_sensitivity import FREE, Cost
from services.kit.operators.core.graph import Graph, Operator, Tensor, Work
from services.planner.core.partitioning.cuts import Cuts
from services.planner.core.partitioning.model import CutRules, Span, StageObjective
from services.planner.core.partitioning.partition import (
    Memory,
    PartitionRequest,
    clusters,
    partition,
)
from services.planner.core.partitioning.stages import Units, choose
from tests.support.examples import examples

KERNEL, VIEW = Work(1.0, 1.0), Work(0.0, 0.0)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a network: operators take earlier tensors; some give shapes, which have no batch."""
    tensors = {"x": tensor("x")}
    operators = []
    for index in range(draw(st.integers(2, 14))):
        known = sorted(tensors)
        taken = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        shape = draw(st.integers(0, 4)) == 0
        name = f"t{index:02}"
        tensors[name] = tensor(name, batched=not shape, size=draw(st.integers(1, 50)))
        weight = (f"w{draw(st.integers(0, 5))}",)
        operators.append(operator(name, taken, () if shape else weight, VIEW if shape else KERNEL))
    batched = [each for each in tensors if tensors[each].batched]
    outputs = draw(st.lists(st.sampled_from(batched), min_size=1, max_size=2, unique=True))
    weights = {f"w{number}": 10 ** (number % 3) for number in range(6)}
    return Graph("net", 1, True, tuple(operators), tensors, weights, ("x",), tuple(outputs))


def tensor(name: str, *, batched: bool = True, size: int = 1) -> Tensor:
    return Tensor(name, "float32", (1, size), (batched, False), batched, item_bytes=4)


def operator(
    name: str, taken: list[str], weights: tuple[str, ...] = (), work: Work = KERNEL
) -> Operator:
    return Operator(name, "Add", tuple(taken), weights, (name,), (), "float32", work)


def costs_of(graph: Graph) -> list[Cost]:
    return [FREE if each.work.free else Cost(1.0, 1.0) for each in graph.operators]


def scored(*scores: float, latency_s: float = 1.0) -> list[Cost]:
    return [Cost(latency_s, latency_s * (1 + score / 2)) for score in scores]


def singles(count: int) -> list[Span]:
    return [Span(index, index + 1) for index in range(count)]


# ---- cuts


@examples(0.4)
@given(graphs())
def test_what_crosses_a_cut_is_all_that_the_other_half_needs(graph: Graph) -> None:
    """Played out: the second half, with these tensors alone, can compute every output."""
    cuts = Cuts(graph)
    made_by = {each.outputs[0]: each for each in graph.operators}
    for after in range(1, len(graph.operators)):
        crossing = set(cuts.crossing(after))
        first = {"x", *(each.outputs[0] for each in graph.operators[:after])}
        assert crossing <= first
        wanted = {n for each in graph.operators[after:] for n in each.inputs} & first
        for name in wanted | (set(graph.outputs) & first):
            assert all(root in crossing for root in needed(name, crossing, made_by))


def needed(name: str, crossing: set[str], made_by: dict[str, Operator]) -> Iterator[str]:
    """Yield what a tensor of the first half is had from: itself, or a shape's own inputs."""
    if name in crossing or name not in made_by or not made_by[name].work.free:
        yield name
        return
    for each in made_by[name].inputs:
        yield from needed(each, crossing, made_by)


@examples(0.4)
@given(graphs())
def test_what_crosses_a_cut_is_the_boundary_in_the_dataflow_graph(graph: Graph) -> None:
    """Of kernels alone; shapes cross as the tensors that they are computed from again."""
    kernels = tuple(replace(each, work=KERNEL) for each in graph.operators)
    graph = replace(graph, operators=kernels)
    cuts = Cuts(graph)

    for after in range(1, len(kernels)):
        boundary = nx.edge_boundary(graph.dataflow, range(-1, after), keys=True)
        assert set(cuts.crossing(after)) == {str(edge[-1]) for edge in boundary}


@examples(0.4)
@given(graphs(), st.integers(1, 3), st.integers(1, 300))
def test_a_legal_cut_hands_on_few_small_tensors_that_carry_the_batch(
    graph: Graph, most: int, most_bytes: int
) -> None:
    cuts = Cuts(graph, CutRules(most, most_bytes))

    for border in [span.start for span in cuts.atoms()][1:]:
        names = cuts.crossing(border)
        assert 1 <= len(names) <= most
        assert cuts.size_bytes(border) <= most_bytes
        assert all(graph.tensors[name].batched for name in names)


def test_a_cut_within_a_residual_block_hands_on_the_skip_connection_too() -> None:
    body = (operator("a", ["x"]), operator("b", ["a"]), operator("c", ["a", "b"]))
    tensors = {name: tensor(name) for name in "xabc"}
    cuts = Cuts(Graph("residual", 1, True, body, tensors, {}, ("x",), ("c",)))

    assert cuts.crossing(1) == ("a",)
    assert cuts.crossing(2) == ("a", "b")


# ---- clusters


@examples(0.4)
@given(graphs(), st.floats(0.0, 2.0), st.data())
def test_clusters_cover_every_operator_once_and_end_at_legal_cuts(
    graph: Graph, threshold: float, data: st.DataObject
) -> None:
    """Algorithm 1 as printed has the head twice and loses the last cluster."""
    atoms = Cuts(graph).atoms()
    longer = st.floats(1.0, 2.0)
    costs = [Cost(1.0, data.draw(longer)) for _ in graph.operators]

    found = clusters(atoms, costs, threshold)

    covered = [index for each in found for index in range(each.span.start, each.span.stop)]
    assert covered == list(range(len(graph.operators)))
    assert {each.span.start for each in found} <= {atom.start for atom in atoms}


def test_neighbours_of_like_sensitivity_share_a_cluster_on_either_side_of_its_mean() -> None:
    """`abs(score) - mean < threshold`, as printed, would let every lower score in."""
    found = clusters(singles(6), scored(1.9, 2.0, 1.8, 0.1, 0.0, 1.0), 0.5)

    assert [each.span for each in found] == [Span(0, 3), Span(3, 5), Span(5, 6)]
    assert [round(each.cost.score, 6) for each in found] == [1.9, 0.05, 1.0]


def test_at_threshold_0_every_kernel_is_a_cluster_and_views_join_their_neighbours() -> None:
    found = clusters(singles(5), [FREE, *scored(1.0, 1.0), FREE, *scored(1.0)], 0.0)

    assert [each.span for each in found] == [Span(0, 2), Span(2, 4), Span(4, 5)]


# ---- stages


@st.composite
def units(draw: st.DrawFn) -> Units:
    count = draw(st.integers(1, 8))
    latencies = draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    transfers = draw(st.lists(st.integers(0, 5), min_size=count - 1, max_size=count - 1))
    sizes = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    most = draw(st.none() | st.integers(5, 40))
    return Units([float(each) for each in latencies], transfers, lambda i, j: sum(sizes[i:j]), most)


def key(made: Units, starts: tuple[int, ...], objective: StageObjective) -> tuple[float, float]:
    bounds = [*starts, len(made.latencies_s)]
    longest = max(made.latency_s(*pair) for pair in pairwise(bounds))
    moved = sum(made.received_bytes(start) for start in starts)
    return (moved, longest) if objective == "latency" else (longest, moved)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@examples(0.4)
@given(made=units(), count=st.integers(1, 5))
def test_no_other_stages_are_better(made: Units, count: int, objective: StageObjective) -> None:
    """Against every way to cut, and none is found exactly where there is none."""
    length = len(made.latencies_s)
    ways = [
        (0, *rest)
        for rest in combinations(range(1, length), count - 1)
        if all(made.fit(*pair) for pair in pairwise((0, *rest, length)))
    ]

    if not ways:
        with pytest.raises(FailedPrecondition):
            choose(made, count, objective)
        return
    starts = choose(made, count, objective)
    assert starts in ways
    assert key(made, starts, objective) == min(key(made, way, objective) for way in ways)


# ---- partitions


@examples(0.4)
@given(graphs(), st.integers(1, 3), st.sampled_from(["latency", "throughput"]))
def test_stages_chain_and_together_are_the_model(
    graph: Graph, stages: int, objective: StageObjective
) -> None:
    costs = costs_of(graph)
    try:
        found = partition(graph, costs, PartitionRequest(stages, objective)).stages
    except FailedPrecondition as error:
        assert "can be cut into at most" in error.message  # noqa: PT017 - the other half of it
        return

    assert found[0].inputs == graph.inputs
    assert found[-1].outputs == graph.outputs
    assert all(one.outputs == other.inputs for one, other in pairwise(found))
    assert [each.span.start for each in found][1:] == [each.span.stop for each in found][:-1]
    assert sum(each.latency_s for each in found) == pytest.approx(sum(c.latency_s for c in costs))
    assert found[-1].transfer_bytes == 0
    weights = sum(graph.constants.values())
    assert all(each.memory_bytes > 0 for each in found)
    assert sum(each.memory_bytes for each in found) <= stages * (weights + 4 * 50 * 15)


def test_shared_weights_count_once_and_tensors_while_they_are_kept() -> None:
    body = (operator("a", ["x"], ("w",)), operator("b", ["a"], ("w",)), operator("c", ["b"]))
    tensors = {
        name: tensor(name, size=size) for name, size in zip("xabc", (1, 10, 100, 5), strict=True)
    }
    graph = Graph("net", 1, True, body, tensors, {"w": 1000}, ("x",), ("c",))

    memory = Memory(graph, singles(3))

    assert memory.bytes(0, 1) == 1000 + 4 * (1 + 10)
    assert memory.bytes(0, 3) == 1000 + 4 * (10 + 100)
    assert memory.bytes(2, 3) == 4 * (100 + 5)


def test_the_threshold_falls_until_there_are_enough_clusters() -> None:
    body = tuple(operator(name, [taken]) for taken, name in pairwise("xabcd"))
    graph = Graph("net", 1, True, body, {n: tensor(n) for n in "xabcd"}, {}, ("x",), ("d",))

    found = partition(graph, scored(1.0, 1.1, 1.2, 1.3), PartitionRequest(4, threshold=1.0))

    assert found.threshold < 0.1
    assert len(found.stages) == 4


def test_what_cannot_be_is_refused_with_what_can() -> None:
    body = (operator("a", ["x"]), operator("b", ["a"]))
    graph = Graph("net", 1, True, body, {n: tensor(n) for n in "xab"}, {}, ("x",), ("b",))

    with pytest.raises(FailedPrecondition, match="at most 2 stages"):
        partition(graph, costs_of(graph), PartitionRequest(3))
    with pytest.raises(FailedPrecondition, match=r"no 2 stages keep within .* MiB each"):
        partition(graph, costs_of(graph), PartitionRequest(2, max_memory_bytes=4))
    with pytest.raises(InvalidArgument, match="stages must be >= 1"):
        PartitionRequest(0)
    with pytest.raises(InvalidArgument, match="threshold"):
        PartitionRequest(2, threshold=3.0)


@examples(0.4)
@given(graphs(), st.integers(1, 3))
def test_placement_knows_the_sensitivity_of_each_stage(graph: Graph, stages: int) -> None:
    """Nothing is lost on the way: times sum to the network's, sensitivities are the file's."""
    costs = [each if each is FREE else Cost(1.0, 1.5) for each in costs_of(graph)]
    try:
        found = partition(graph, costs, PartitionRequest(stages, threshold=0.0))
    except FailedPrecondition:
        return
    assume(all(stage.latency_s for stage in found.stages))  # only shapes: nothing to place
    placed = partitions(found, batches=3.0, link_bytes_per_s=10.0)

    assert sum(each.latency_s for each in placed) == pytest.approx(
        3.0 * sum(c.latency_s for c in costs)
    )
    assert all(each.sensitivity == pytest.approx(0.5) for each in placed)
    assert [each.index for each in placed] == list(range(stages))
    assert [each.transfer_s for each in placed] == pytest.approx(
        [0.3 * stage.transfer_bytes for stage in found.stages]
    )
    assert [each.memory_bytes for each in placed] == [s.memory_bytes for s in found.stages]
