"""Branches and loops of an ONNX file: their work, from a run of the bodies that a run reaches."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from services.kit.errors import InvalidArgument
from services.kit.operators.core.graph import Work
from services.kit.operators.core.work import Node, work
from services.kit.operators.shape_trace import seen, session

Values = Mapping[str, Any]

_CARRIED_FROM: Final = 2
"""Place of a Loop's first carried value: before it are its number of iterations and a condition."""


def bodies(node: onnx.NodeProto) -> Sequence[onnx.GraphProto]:
    """Return the graphs inside a node: branches, or the body of a loop."""
    attributes = node.attribute
    single = [each.g for each in attributes if each.type == each.GRAPH]
    return [*single, *(g for each in attributes if each.type == each.GRAPHS for g in each.graphs)]


def captured(graph: onnx.GraphProto) -> Iterable[str]:
    """Yield the names that a body takes from the graphs around it, in order, some twice."""
    own = {"", *(each.name for each in graph.input), *(each.name for each in graph.initializer)}
    for node in graph.node:
        yield from (name for name in taken(node) if name not in own)
        own.update(node.output)
    yield from (each.name for each in graph.output if each.name not in own)


def taken(node: onnx.NodeProto) -> Sequence[str]:
    """Return the names that a node reads, its bodies included."""
    return (*node.input, *(name for body in bodies(node) for name in captured(body)))


class Bodies:
    """The bodies of a model's nodes. Blocks.

    Args:
        model: The model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    def names(self) -> set[str]:
        """Return the names of the graph's tensors that `work` needs the values of."""
        found = [n for node in self._model.graph.node if bodies(node) for n in taken(node)]
        found += [n for node in self._model.graph.node if bodies(node) for n in node.output]
        made = {name for node in self._model.graph.node for name in node.output}
        return made.intersection(found)

    def weights(self) -> Values:
        """Return the weights that bodies take from the graph."""
        names = {n for node in self._model.graph.node for body in bodies(node) for n in taken(node)}
        return _weights(each for each in self._model.graph.initializer if each.name in names)

    def work(self, node: onnx.NodeProto, values: Values) -> Work:
        """Return the work of a node with bodies: of the branch taken, of all iterations.

        Args:
            node: The node.
            values: What it and its bodies take, and what it gave.

        Raises:
            InvalidArgument: A body does not run by itself.
        """
        attributes = {each.name: each for each in node.attribute}
        match node.op_type:
            case "If":
                name = "then_branch" if np.all(values[node.input[0]]) else "else_branch"
                return self._run(attributes[name].g, values, {})
            case "Loop":
                body = attributes["body"].g
                carried = [values.get(name) for name in node.input[_CARRIED_FROM:]]
                given = [np.int64(0), np.bool_(True), *carried]
                count = _iterations(node, len(carried), values)
            case "Scan":
                body = attributes["body"].g
                states = len(node.input) - attributes["num_scan_inputs"].i
                taken_in = [values[name] for name in node.input]
                count = len(taken_in[states]) if len(taken_in) > states else 0
                given = [*taken_in[:states], *(each[0] for each in taken_in[states:] if count)]
            case _:
                return Work(0.0, 0.0)
        if not count:
            return Work(0.0, 0.0)
        own = {each.name: v for each, v in zip(body.input, given, strict=False) if v is not None}
        once = self._run(body, values, own)
        return Work(once.flops * count, once.moved_bytes * count)

    def _run(self, body: onnx.GraphProto, outer: Values, own: Values) -> Work:
        names = [name for node in body.node for name in node.output if name]
        if not names:
            return Work(0.0, 0.0)
        feeds = {name: outer[name] for name in captured(body) if name in outer} | dict(own)
        arrays = {k: v for k, v in feeds.items() if isinstance(v, np.ndarray | np.generic)}
        running = session(self._alone(body, arrays, names), optimised=False)
        try:
            results = running.run(names, {key: np.asarray(each) for key, each in arrays.items()})
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise InvalidArgument(f"a body of it does not run by itself: {error}") from error
        made = dict(zip(names, results, strict=True))
        inside = {**outer, **_weights(body.initializer), **arrays, **made}
        works = [
            self.work(node, inside) if bodies(node) else _work(node, inside) for node in body.node
        ]
        return Work(sum(each.flops for each in works), sum(each.moved_bytes for each in works))

    def _alone(self, body: onnx.GraphProto, given: Values, outputs: Iterable[str]) -> bytes:
        """Return a body as a model whose inputs are what it takes from around it."""
        inputs = [
            helper.make_tensor_value_info(
                name, _element_type(np.asarray(each)), np.asarray(each).shape
            )
            for name, each in given.items()
        ]
        graph = helper.make_graph(
            list(body.node),
            "body",
            inputs,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            list(body.initializer),
        )
        model = onnx.ModelProto(ir_version=self._model.ir_version, graph=graph)
        model.opset_import.extend(self._model.opset_import)
        model.functions.extend(self._model.functions)
        return model.SerializeToString()


def _element_type(array: np.ndarray[Any, Any]) -> int:
    if array.dtype.kind in "OU":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def _weights(tensors: Iterable[onnx.TensorProto]) -> dict[str, Any]:
    return {each.name: numpy_helper.to_array(each) for each in tensors}


def _iterations(node: onnx.NodeProto, carried: int, values: Values) -> int:
    """Return how often a Loop ran: the rows of what it collects, or else its greatest number."""
    for name in node.output[carried:]:
        if isinstance(values.get(name), np.ndarray):
            return len(values[name])
    most = values.get(node.input[0]) if node.input[0] else None
    return 1 if most is None else max(int(np.ravel(most)[0]), 0)


def _work(node: onnx.NodeProto, values: Values) -> Work:
    return work(
        Node(
            node.op_type,
            {each.name: helper.get_attribute_value(each) for each in node.attribute},
            tuple(seen(values.get(name)) for name in node.input),
            tuple(seen(values.get(name)) for name in node.output),
        )
    )
