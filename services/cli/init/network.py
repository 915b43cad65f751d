"""Examination of a network's file: signature, arithmetic, memory, speed here, and its accuracy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field

from services.cli.init import ctc
from services.cli.init.inputs import KnownInputs, cast
from services.cli.init.metric import Answer, Function, Metric, score
from services.cli.networks import files_of
from services.cli.samples import Array, Input, Samples, read_samples
from services.kit.errors import InvalidArgument
from services.kit.operators.batch_invariance import why_alone
from services.kit.operators.onnx_nodes import read_nodes
from services.kit.operators.onnx_reader import load, read
from services.kit.operators.random_inputs import DATATYPES, STRING, Sizes, drawn
from services.kit.operators.shape_trace import session
from services.kit.operators.zip_map import MAPS, scores
from services.kit.plurals import counted
from services.kit.process.confined import confined
from services.kit.units import BYTES_PER_MIB

TIMED_RUNS: Final = 20
_CHUNK: Final = 64
_LARGEST: Final = 8
"""Batch up to which items are shown not to mix."""
MEASURED_CPU_S: Final = 4 * 3600
"""Most processor time for the answers to a validation set, s."""

Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output. Attributes: name, datatype (ONNX Runtime's), shape (None: free)."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]

    @property
    def is_tensor(self) -> bool:
        """False: a sequence, a map, a type that clients have no name for."""
        return self.datatype in DATATYPES or self.datatype == STRING

    @property
    def is_served(self) -> bool:
        """True: clients can have it."""
        return self.is_tensor or self.datatype in MAPS

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.name} {self.datatype.removeprefix('tensor(').removesuffix(')')}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Network:
    """A network that could be served.

    Attributes:
        file: ONNX file.
        inputs, outputs: Signature, in the order of the file.
        gmacs_per_item: Multiply-accumulates per item, 1e9; half the operations of all operators.
        weights_mib: Size of the weights, MiB.
        item_mib: Size of all inner tensors of an item, an upper bound of what it takes, MiB.
        items: Sizes of an item by input, where the file leaves any free.
        fixed_batch: The first size of all its inputs where they have one that is fixed; None: it is
            free, or no batch.
        alone: Why requests may not share a batch; "": they may.
        latency_s: Slowest but one of 20 runs of one item on one core of this machine, s.
    """

    file: Path
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    gmacs_per_item: Figure
    weights_mib: Figure
    item_mib: Figure
    items: Mapping[str, tuple[int, ...]]
    fixed_batch: Annotated[int, Field(ge=0)] | None
    alone: str
    latency_s: Figure


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A measured accuracy.

    Attributes:
        value: 0..1.
        items: That it was measured on.
    """

    value: Annotated[float, Field(ge=0, le=1)]
    items: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class Validation:
    """Measurement of accuracies.

    Attributes:
        data: Validation set.
        metric: How answers are compared.
        best: The network whose answers stand for labels; None: the set's labels do.
        first: Index of the first item to be measured on.
    """

    data: Path
    metric: Metric | Function
    best: Network | None = None
    first: int = 0

    @property
    def description(self) -> str:
        """The metric and what answers are compared with, in words."""
        function = self.metric
        name = f"{function.file}:{function.name}" if isinstance(function, Function) else function
        return f"{name} with {self.best.file.name}" if self.best else str(name)


def examined(file: Path, known: KnownInputs) -> Network:
    """Return what a confined process finds in a network's file, and in several runs of it. Blocks.

    Args:
        file: ONNX file.
        known: Sizes of an item, where the file leaves sizes other than the first free, on which
            arithmetic and memory depend.

    Raises:
        NotFound: The file does not exist.
        InvalidArgument: The file is not an ONNX model, or one that ONNX Runtime cannot run; or a
            free size is not known; or it reaches a limit of the process.
    """
    return confined(examine, file, known, file=file, reads=reads(file, known.data))


def measured(network: Network, by: Validation) -> Accuracy:
    """Return a network's accuracy, as a confined process measures it. Blocks.

    Raises:
        ServiceError: As `measure`; or it reaches a limit of the process.
    """
    read = reads(network.file, by.data)
    read += reads(by.best.file, None) if by.best else []
    read += [by.metric.file] if isinstance(by.metric, Function) else []
    return confined(measure, network, by, file=network.file, reads=read, cpu_s=MEASURED_CPU_S)


def reads(file: Path, data: Path | None) -> list[Path]:
    """Return what examining a network reads."""
    return [*files_of(file), *([] if data is None else [data])]


def examine(file: Path, known: KnownInputs) -> Network:
    """Examine a network's file, and run it several times. Call it in a confined process."""
    model = load(file)
    running = session(model.SerializeToString())
    described = running.get_inputs()
    example = known.first_item(described)
    sizes = Sizes(
        batch=1, items=known.item_shapes(described, example), texts=read_nodes(file).texts or ("",)
    )
    try:
        graph = read(model, file.stem, sizes, example)
    except InvalidArgument as error:
        if example:
            raise
        raise InvalidArgument(
            f"{error.message}; where it does not take random numbers, give items that it takes: "
            "--data FILE.npz, an array for each input"
        ) from error
    inputs, outputs = _tensors(described), _tensors(running.get_outputs())
    if not any(each.is_served for each in outputs):
        raise InvalidArgument(f"no output is a tensor: {', '.join(map(str, outputs))}")
    fixed = _fixed_batch(inputs)
    items = fixed or 1
    names = [each.name for each in outputs if each.is_tensor]
    alone = _no_batch(inputs, fixed)
    return Network(
        file=file,
        inputs=inputs,
        outputs=outputs,
        gmacs_per_item=sum(each.work.flops for each in graph.operators) / 2e9 / items,
        weights_mib=sum(graph.constants.values()) / BYTES_PER_MIB,
        item_mib=sum(t.size_bytes for t in graph.tensors.values()) / BYTES_PER_MIB / items,
        items=sizes.items,
        fixed_batch=fixed,
        alone=alone or why_alone(file, described, names, partial(running.run, names), _LARGEST),
        latency_s=_latency_s(running, drawn(described, sizes, seed=0, example=example)),
    )


def measure(network: Network, by: Validation) -> Accuracy:
    """Return a network's accuracy. Call it in a confined process.

    Raises:
        InvalidArgument: The samples lack labels that the metric needs, or do not fit the network;
            or its answers have nothing that the metric compares.
    """
    inputs = [Input(each.name, each.shape) for each in network.inputs]
    samples = read_samples(by.data, inputs).part(by.first)
    if samples.labels is None and by.best is None and isinstance(by.metric, Metric):
        raise InvalidArgument("no labels: np.savez(FILE, images=..., labels=...)")
    answers = _answers(network, samples, by)
    right: list[Any] = []
    if by.best is not None:
        right = _answers(by.best, samples, by)
    elif samples.labels is not None:
        right = [*samples.labels[: len(answers)]]
    try:
        return Accuracy(score(by.metric, answers, right), len(answers))
    except InvalidArgument as error:
        raise InvalidArgument(f"{network.file}: {error.message}") from error


def _answers(network: Network, samples: Samples, by: Validation) -> list[Answer]:
    """Return the answer to each item: many run together where they may."""
    running = session(load(network.file).SerializeToString())
    served = [each for each in network.outputs if each.is_served]
    names = [each.name for each in served]
    described, step = running.get_inputs(), 1 if network.alone else _CHUNK
    answers = list[Answer]()
    for first in range(0, len(samples), step):
        part = samples.part(first, min(first + step, len(samples)))
        given = cast(part.tensors, described)
        try:
            outputs = running.run(names, given)
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise InvalidArgument(f"{network.file}: the samples do not fit: {error}") from error
        outputs = [
            given if each.is_tensor else scores(given)
            for each, given in zip(served, outputs, strict=True)
        ]
        items = network.fixed_batch or (1 if network.alone else len(part))
        for item in range(items):
            answers.append(
                {
                    name: each[item] if each.shape[:1] == (items,) else each
                    for name, each in zip(names, outputs, strict=True)
                }
            )
    found: list[Answer] = [
        {name: _array(each) for name, each in answer.items()} for answer in answers
    ]
    if by.metric != Metric.TEXT:
        return found
    characters = ctc.characters_of(running.get_modelmeta().custom_metadata_map)
    return [_read_out(each, characters, labelled=by.best is None) for each in found]


def _read_out(answer: Answer, characters: Sequence[str], *, labelled: bool) -> Answer:
    """Return the text of an answer of scores by character, and other answers as they are."""
    text = ctc.text(answer, characters)
    if text is None:
        return answer
    if labelled and not characters:
        raise InvalidArgument(ctc.UNNAMED)
    return {"text": _array(text)}


def _array(value: Any) -> Array:
    """Return a value of one item as an array: texts stay objects, also a single one."""
    return np.asarray(value, object if isinstance(value, str) else None)


def require_one_signature(networks: Sequence[Network]) -> None:
    """Check that networks can answer each other's requests.

    Raises:
        InvalidArgument: A tensor differs; the message names it. Sizes of the batch may differ.
    """
    first = networks[0]
    for other in networks[1:]:
        for kind in ("inputs", "outputs"):
            one, two = getattr(first, kind), getattr(other, kind)
            if len(one) != len(two):
                raise InvalidArgument(
                    f"{other.file} has {len(two)} {kind}, {first.file} has {len(one)}: variants "
                    "of a model have one signature"
                )
            for a, b in zip(one, two, strict=True):
                if (a.name, a.datatype, a.shape[1:]) != (b.name, b.datatype, b.shape[1:]):
                    raise InvalidArgument(
                        f"{other.file}: {b} differs from {a} of {first.file}: variants of a model "
                        "have one signature"
                    )


def _fixed_batch(inputs: Sequence[Tensor]) -> int | None:
    firsts = {each.shape[0] if each.shape else None for each in inputs}
    return firsts.pop() or None if len(firsts) == 1 else None


def _no_batch(inputs: Sequence[Tensor], fixed: int | None) -> str:
    """Return why a first size is no batch; "": it is one, and free."""
    if fixed:
        return f"it takes {counted(fixed, 'item')} at a time; export it with a free first dimension"
    names = [each.name for each in inputs if not each.shape or each.shape[0] is not None]
    return f"the first size of {', '.join(names)} is no number of items" if names else ""


def _tensors(described: Sequence[Any]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(
            each.name,
            each.type,
            tuple(size if isinstance(size, int) and size >= 0 else None for size in each.shape),
        )
        for each in described
    )


def _latency_s(running: Any, given: Mapping[str, Array]) -> float:
    times = []
    for _ in range(TIMED_RUNS):
        began_s = time.perf_counter()
        running.run(None, dict(given))
        times.append(time.perf_counter() - began_s)
    return sorted(times)[-2]
