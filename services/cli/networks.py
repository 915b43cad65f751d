"""Networks' files of others, as confined processes read them."""

import glob
from pathlib import Path
from typing import Final

from services.kit.errors import InvalidArgument
from services.kit.operators.core.graph import Graph
from services.kit.operators.onnx_reader import load, read, require_flat
from services.kit.operators.random_inputs import Sizes
from services.kit.process.confined import confined
from services.kit.units import BYTES_PER_MIB

_GRAPH_BYTES: Final = 64 * BYTES_PER_MIB


def files_of(network: Path) -> list[Path]:
    """Return what reading a network takes: its folder has its files of weights, or links to them.

    Args:
        network: ONNX file.
    """
    return [network.parent, *network.parent.glob(f"{glob.escape(network.name)}*")]


def graph_of(file: Path, sizes: Sizes) -> Graph:
    """Return a network's operators, with the shapes that a run of it has. Blocks.

    Args:
        file: ONNX file.
        sizes: Free sizes of the inputs.

    Raises:
        NotFound: The file does not exist.
        InvalidArgument: It cannot be read as a model or not run at these sizes, or reading it
            reaches a limit of the process.
    """
    graph = confined(_read, file, sizes, file=file, reads=files_of(file), answer_bytes=_GRAPH_BYTES)
    _require_order(graph, file)
    return graph


def _read(file: Path, sizes: Sizes) -> Graph:
    model = load(file)
    require_flat(model, file)
    return read(model, file.stem, sizes)


def _require_order(graph: Graph, file: Path) -> None:
    """Check that operators take what comes before them, and that all their tensors are there."""
    made = set(graph.inputs)
    for each in graph.operators:
        if not made.issuperset(each.inputs) or not graph.constants.keys() >= set(each.constants):
            raise InvalidArgument(f"{file}: {each.name} takes what no operator before it gives")
        made.update(each.outputs)
    if not graph.tensors.keys() >= made:
        raise InvalidArgument(f"{file}: a tensor of it has no shape")
