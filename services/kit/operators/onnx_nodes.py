"""Operators of an ONNX file, read without its weights and without the library `onnx`.

A file may have gigabytes of weights, and an agent's image no `onnx`: fields are read where they
lie, and weights are passed over.
Source: ONNX, "onnx.proto" (numbers of fields).
"""

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from services.kit.operators.core.data_dependence import Body, GraphNode
from services.kit.protobuf_wire import BYTES, fields

_GRAPH, _FUNCTION = 7, 25  # of ModelProto
_G_NODE, _G_WEIGHTS, _G_INPUT, _G_OUTPUT = 1, 5, 11, 12  # of GraphProto
_F_NAME, _F_INPUT, _F_OUTPUT, _F_NODE = 1, 4, 5, 7  # of FunctionProto
_N_INPUT, _N_OUTPUT, _N_TYPE, _N_ATTRIBUTE = 1, 2, 4, 5  # of NodeProto
_A_GRAPH, _A_STRINGS, _A_GRAPHS = 6, 9, 11  # of AttributeProto
_NAME: Final = 1  # of ValueInfoProto
_W_TEXTS, _W_NAME = 6, 8  # of TensorProto
_MAX_FIELDS: Final = 2**26
_MAX_TEXTS: Final = 256
_MAX_DEPTH: Final = 32


class Nodes(NamedTuple):
    """Parts of an ONNX file that concern its operators.

    Attributes:
        graph: The network.
        functions: Operators that the file defines, by type.
        texts: Strings that its operators know, such as categories; the first of them.
    """

    graph: Body
    functions: Mapping[str, Body]
    texts: tuple[str, ...]


def read_nodes(file: Path) -> Nodes:
    """Return the operators of an ONNX file.

    Raises:
        ValueError: It is not one.
    """
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Reader(data).model()  # type: ignore[arg-type]  # it is indexed like bytes
        except (IndexError, UnicodeDecodeError) as error:
            raise ValueError("it is not an ONNX file") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._texts: list[str] = []

    def model(self) -> Nodes:
        graph, functions = None, {}
        for number, start, end in self._parts(0, len(self._data)):
            if number == _GRAPH:
                graph = self._graph(start, end, 0)
            elif number == _FUNCTION:
                name, body = self._function(start, end)
                functions[name] = body
        if graph is None:
            raise ValueError("it has no graph")
        return Nodes(graph, functions, tuple(dict.fromkeys(self._texts)))

    def _graph(self, start: int, end: int, depth: int) -> Body:
        if depth > _MAX_DEPTH:
            raise ValueError("its graphs are nested too deep")
        nodes, inputs, outputs, weights = [], [], [], set()
        for number, first, last in self._parts(start, end):
            if number == _G_NODE:
                nodes.append(self._node(first, last, depth))
            elif number == _G_INPUT:
                inputs.append(self._text(first, last, _NAME))
            elif number == _G_OUTPUT:
                outputs.append(self._text(first, last, _NAME))
            elif number == _G_WEIGHTS:
                weights.add(self._weight(first, last))
        return Body(nodes, [name for name in inputs if name not in weights], outputs)

    def _function(self, start: int, end: int) -> tuple[str, Body]:
        name, nodes, inputs, outputs = "", list[GraphNode](), list[str](), list[str]()
        for number, first, last in self._parts(start, end):
            if number == _F_NAME:
                name = self._data[first:last].decode()
            elif number == _F_NODE:
                nodes.append(self._node(first, last, 0))
            elif number in (_F_INPUT, _F_OUTPUT):
                names = inputs if number == _F_INPUT else outputs
                names.append(self._data[first:last].decode())
        return name, Body(nodes, inputs, outputs)

    def _node(self, start: int, end: int, depth: int) -> GraphNode:
        kind, inputs, outputs, bodies = "", list[str](), list[str](), list[Body]()
        for number, first, last in self._parts(start, end):
            if number == _N_TYPE:
                kind = self._data[first:last].decode()
            elif number in (_N_INPUT, _N_OUTPUT):
                names = inputs if number == _N_INPUT else outputs
                names.append(self._data[first:last].decode())
            elif number == _N_ATTRIBUTE:
                for of, begin, stop in self._parts(first, last):
                    if of in (_A_GRAPH, _A_GRAPHS):
                        bodies.append(self._graph(begin, stop, depth + 1))
                    elif of == _A_STRINGS:
                        self._keep(begin, stop)
        return GraphNode(kind, inputs, outputs, bodies)

    def _weight(self, start: int, end: int) -> str:
        name = ""
        for number, first, last in self._parts(start, end):
            if number == _W_NAME:
                name = self._data[first:last].decode()
            elif number == _W_TEXTS:
                self._keep(first, last)
        return name

    def _keep(self, start: int, end: int) -> None:
        if len(self._texts) < _MAX_TEXTS:
            self._texts.append(self._data[start:end].decode(errors="replace"))

    def _text(self, start: int, end: int, wanted: int) -> str:
        found = (each for each in self._parts(start, end) if each[0] == wanted)
        return "".join(self._data[first:last].decode() for _, first, last in found)

    def _parts(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        for number, kind, first, last in fields(self._data, start, end, _MAX_FIELDS):
            if kind == BYTES:
                yield number, first, last
