"""Reads an ONNX file as a graph of operators with shapes and work."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import networkx as nx
import onnx

from services.kit.errors import InvalidArgument, NotFound
from services.kit.operators.core.graph import Graph, Operator, Tensor, Work
from services.kit.operators.core.work import Node, Operand, work
from services.kit.operators.random_inputs import Array, Sizes
from services.kit.operators.shape_trace import Tracer
from services.kit.operators.subgraphs import Bodies, bodies, taken
from services.kit.segment import require_printable

_PROBES: Final = (Sizes(2, 7), Sizes(3, 11))
"""Two runs that differ in every free size that is not given reveal the free inner sizes."""


def load(file: Path) -> onnx.ModelProto:
    """Return the model in a file, its operators in an order in which they can run.

    Raises:
        NotFound: The file does not exist.
        InvalidArgument: The file is not an ONNX model, has a cycle or names that are not
            printable, or names files of weights that cannot be used.
    """
    try:
        model = onnx.load(file, load_external_data=False)
    except FileNotFoundError as error:
        raise NotFound(f"there is no {file}") from error
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror}") from error
    except Exception as error:  # protobuf's errors share no base class
        raise InvalidArgument(f"{file} is not an ONNX model: {error}") from error
    if not model.graph.node:
        raise InvalidArgument(f"{file} is not an ONNX model: it has no operators")
    require_printable(str(file), *_names(model.graph))
    try:
        onnx.load_external_data_for_model(model, str(file.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise InvalidArgument(f"{file}: its files of weights cannot be read: {error}") from error
    try:
        _sort(model.graph)
    except nx.NetworkXUnfeasible as error:
        raise InvalidArgument(f"{file}: its operators depend on one another in a cycle") from error
    return model


def require_flat(model: onnx.ModelProto, file: Path) -> None:
    """Check that a model has no branches and loops.

    Raises:
        InvalidArgument: It has; the message names the first one.
    """
    node = next((each for each in model.graph.node if bodies(each)), None)
    if node is not None:
        raise InvalidArgument(
            f"{file}: {node.op_type} {node.name!r} has a subgraph: operators are read one by one"
        )


def _names(graph: onnx.GraphProto) -> Iterable[str]:
    """Yield every name of a graph that leaves this module."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for body in bodies(node):
            yield from _names(body)
    yield from (each.name for each in graph.initializer)
    for each in (*graph.input, *graph.output, *graph.value_info):
        yield each.name
        yield from (size.dim_param for size in each.type.tensor_type.shape.dim)


def _sort(graph: onnx.GraphProto) -> None:
    """Put operators in topological order; a valid order, which files should have, is kept."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(graph.node)))
    for index, node in enumerate(graph.node):
        order.add_edges_from((makers[name], index) for name in taken(node) if name in makers)
    nodes = [graph.node[index] for index in nx.lexicographical_topological_sort(order)]
    if nodes != list(graph.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def read(
    model: onnx.ModelProto,
    name: str,
    sizes: Sizes,
    example: Mapping[str, Array] | None = None,
) -> Graph:
    """Return a model's operators, with the shapes that a run of it has.

    Args:
        model: The model.
        name: Name of the graph.
        sizes: Free sizes of the inputs.
        example: An item for inputs by name, which is run instead of random values: it decides which
            branches are taken.

    Raises:
        InvalidArgument: The model does not run at these sizes.
    """
    tracer = Tracer(model, example)
    traced = tracer.trace(sizes)
    probes = [traced, traced]
    if tracer.free:
        others = [replace(probe, items=sizes.items, texts=sizes.texts) for probe in _PROBES]
        try:
            probes = [tracer.trace(other) for other in others]
        except InvalidArgument:
            if tracer.batches:
                raise  # else sizes may depend on one another, or on the example
    weights = {each.name: _weight(each) for each in model.graph.initializer}
    inside, of_bodies = Bodies(model), dict[str, Any]()
    if any(map(bodies, model.graph.node)):
        of_bodies = {**inside.weights(), **tracer.values(sizes, inside.names())}
    reader = _Reader(
        traced,
        probes,
        weights,
        _fixed(model, weights),
        partial(inside.work, values=of_bodies),
        batches=tracer.batches,
    )
    operators = tuple(reader.operators(model.graph.node))
    names = (*tracer.inputs, *(name for each in operators for name in each.outputs))
    used = {name for each in operators for name in each.constants}
    return Graph(
        name=name,
        batch_size=sizes.batch if tracer.batches else 1,
        batches=tracer.batches,
        operators=operators,
        tensors={each: reader.tensor(each) for each in names},
        constants={each: reader.size_bytes(each) for each in sorted(used)},
        inputs=tracer.inputs,
        outputs=tuple(each.name for each in model.graph.output),
    )


@dataclass(frozen=True)
class _Reader:
    traced: Mapping[str, Operand | None]
    probes: list[Mapping[str, Operand | None]]
    weights: Mapping[str, Operand]
    fixed: frozenset[str]
    work_inside: Callable[[onnx.NodeProto], Work]
    batches: bool

    def operators(self, nodes: Iterable[onnx.NodeProto]) -> Iterable[Operator]:
        for index, node in enumerate(nodes):
            outputs = tuple(filter(None, node.output))
            if self.fixed.issuperset(outputs):
                continue
            reads = [name for name in taken(node) if name]
            described = Node(
                node.op_type,
                {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute},
                tuple(map(self._operand, node.input)),
                tuple(map(self._operand, node.output)),
            )
            operands = [each for each in (*described.inputs, *described.outputs) if each]
            yield Operator(
                name=node.name or f"{node.op_type}_{index}",
                type=node.op_type,
                inputs=tuple(dict.fromkeys(n for n in reads if n not in self.fixed)),
                constants=tuple(dict.fromkeys(n for n in reads if n in self.fixed)),
                outputs=outputs,
                shapes=tuple(each.shape for each in operands),
                datatype=self._datatype(reads or outputs),
                work=self.work_inside(node) if bodies(node) else work(described),
            )

    def tensor(self, name: str) -> Tensor:
        seen, probes = self._operand(name), [probe.get(name) for probe in self.probes]
        one, other = probes
        if seen is None or one is None or other is None or len(one.shape) != len(other.shape):
            return Tensor(name, "", (), (), batched=False, item_bytes=0)
        free = tuple(a != b for a, b in zip(one.shape, other.shape, strict=True))
        batch = (one.shape[:1], other.shape[:1])
        batched = self.batches and batch == tuple((probe.batch,) for probe in _PROBES)
        return Tensor(name, seen.datatype, seen.shape, free, batched, seen.item_bytes)

    def size_bytes(self, name: str) -> int:
        operand = self._operand(name)
        return operand.size_bytes if operand else 0

    def _operand(self, name: str) -> Operand | None:
        return self.weights.get(name) or self.traced.get(name)

    def _datatype(self, names: Iterable[str]) -> str:
        return next((seen.datatype for name in names if (seen := self._operand(name))), "")


def _fixed(model: onnx.ModelProto, weights: Iterable[str]) -> frozenset[str]:
    """Return the tensors that do not depend on the inputs."""
    fixed = {*weights, ""}
    for node in model.graph.node:
        if fixed.issuperset(taken(node)):
            fixed.update(node.output)
    return frozenset(fixed)


def _weight(tensor: onnx.TensorProto) -> Operand:
    datatype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return Operand(datatype.name, tuple(tensor.dims), datatype.itemsize)
