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

from services.cli.init.inputs import KnownInputs
from services.cli.networks import files_of
from services.cli.samples import Array, Samples, read_samples
from services.kit.errors import InvalidArgument
from services.kit.operators.batch_invariance import why_alone
from services.kit.operators.onnx_reader import load, read
from services.kit.operators.random_inputs import Sizes, drawn, free_items
from services.kit.operators.shape_trace import session
from services.kit.operators.zip_map import MAPS
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
        """False: a sequence, a map."""
        return self.datatype.startswith("tensor(")

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
        fixed_batch: The first size of its inputs where it is fixed; None: it is free.
        alone: Why requests may not share a batch; "": they may.
        latency_s: Slowest but one of 20 runs of one item on one core of this machine, s.
    """

    file: Path
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    gmacs_per_item: Figure
    weights_mib: Figure
    item_mib: Figure
    fixed_batch: Annotated[int, Field(ge=0)] | None
    alone: str
    latency_s: Figure


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A measured accuracy. Attributes: value (0..1), items (that it was measured on)."""

    value: Annotated[float, Field(ge=0, le=1)]
    items: Annotated[int, Field(ge=1)]


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


def measured(network: Network, data: Path, first: int) -> Accuracy:
    """Return the share of samples that a classifier gets right in a confined process. Blocks.

    Args:
        network: The network.
        data: Validation set.
        first: Index of its first item to be measured on.

    Raises:
        ServiceError: As `measure`; or it reaches a limit of the process.
    """
    return confined(
        _measured_on, network, data, first,
        file=network.file, reads=reads(network.file, data), cpu_s=MEASURED_CPU_S,
    )  # fmt: skip


def _measured_on(network: Network, data: Path, first: int) -> Accuracy:
    return measure(network, read_samples(data, [each.name for each in network.inputs]).part(first))


def reads(file: Path, data: Path | None) -> list[Path]:
    """Return what examining a network reads."""
    return [*files_of(file), *([] if data is None else [data])]


def examine(file: Path, known: KnownInputs) -> Network:
    """Examine a network's file, and run it several times. Call it in a confined process."""
    model = load(file)
    running = session(model.SerializeToString())
    sizes = Sizes(batch=1, items=_item_shapes(running.get_inputs(), known))
    graph = read(model, file.stem, sizes)
    inputs, outputs = _tensors(running.get_inputs()), _tensors(running.get_outputs())
    fixed = None if graph.batches else next((t.shape[0] for t in inputs if t.shape), None)
    items = fixed or 1
    names = [each.name for each in outputs if each.is_tensor]
    return Network(
        file=file,
        inputs=inputs,
        outputs=outputs,
        gmacs_per_item=sum(each.work.flops for each in graph.operators) / 2e9 / items,
        weights_mib=sum(graph.constants.values()) / BYTES_PER_MIB,
        item_mib=sum(t.size_bytes for t in graph.tensors.values()) / BYTES_PER_MIB / items,
        fixed_batch=fixed,
        alone=f"it takes {items} items at a time; export it with a free first dimension"
        if fixed
        else why_alone(file, running.get_inputs(), names, partial(running.run, names), _LARGEST),
        latency_s=_latency_s(running, drawn(running.get_inputs(), sizes, seed=0)),
    )


def measure(network: Network, samples: Samples) -> Accuracy:
    """Return the share of samples that a classifier gets right.

    Its answer is its output of integers, one for each item, or else the largest of its scores. A
    network with a fixed batch gets whole batches; the rest of the samples is left out.

    Raises:
        InvalidArgument: The samples have no labels, or do not fit the network; or no output is a
            class or a row of scores per item.
    """
    labels = samples.labels
    if labels is None:
        raise InvalidArgument("no labels: np.savez(FILE, images=..., labels=...)")
    step = network.fixed_batch or _CHUNK
    end = len(samples) // step * step if network.fixed_batch else len(samples)
    if not end:
        raise InvalidArgument(f"{network.file}: takes {step} items at a time; there are fewer")
    running = session(network.file.read_bytes())
    right = 0
    for first in range(0, end, step):
        part = samples.part(first, min(first + step, end))
        given = _cast(part.inputs, network)
        try:
            outputs = running.run(None, given)
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise InvalidArgument(f"{network.file}: the samples do not fit: {error}") from error
        right += int(
            np.sum(
                _classes(outputs, len(part), network) == np.ravel(labels[first : first + len(part)])
            )
        )
    return Accuracy(right / end, end)


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


def _item_shapes(inputs: Sequence[Any], known: KnownInputs) -> Mapping[str, tuple[int, ...]]:
    free = free_items(inputs)
    found = known.item_shapes([each.name for each in inputs]) if free else {}
    for each in _tensors(inputs):
        if each.name in free and each.name not in found:
            raise InvalidArgument(
                f"--shape: arithmetic depends on sizes that {each} leaves free; give those of an "
                f"item, --shape {each.name}=3,224,224, or a validation set, --data"
            )
    return found


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


def _cast(inputs: Mapping[str, Array], network: Network) -> dict[str, Array]:
    kinds = {
        "tensor(float)": "f4",
        "tensor(double)": "f8",
        "tensor(float16)": "f2",
        "tensor(int64)": "i8",
        "tensor(int32)": "i4",
        "tensor(uint8)": "u1",
    }
    return {
        each.name: inputs[each.name].astype(kinds.get(each.datatype), copy=False)
        if each.datatype in kinds
        else inputs[each.name]
        for each in network.inputs
    }


def _classes(outputs: Sequence[Any], items: int, network: Network) -> Array:
    arrays = [each for each in outputs if isinstance(each, np.ndarray) and each.ndim]
    for each in arrays:
        if each.dtype.kind in "iu" and each.size == items:
            return np.ravel(each)
    for each in arrays:
        if each.dtype.kind == "f" and each.ndim == 2 and len(each) == items:
            best: Array = np.argmax(each, axis=1)
            return best
    names = ", ".join(map(str, network.outputs))
    raise InvalidArgument(
        f"{network.file}: no output has a class or a row of scores per item ({names}); only "
        "classifiers can be measured: leave --data out and write `accuracy` yourself"
    )
