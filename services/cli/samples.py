"""A validation set: labelled items, as arrays in an .npz file."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from services.kit.errors import InvalidArgument, NotFound
from services.kit.process.confined import confined
from services.kit.units import BYTES_PER_MIB

LABELS: Final = ("labels", "label", "y", "targets")
"""Names under which the right answers are looked for, in this order."""

Array = NDArray[Any]

_PART_BYTES: Final = 256 * BYTES_PER_MIB
"""Most bytes of items that leave the process that reads their file, in Base64."""

_NUMBERS: Final = "biuf"


@dataclass(frozen=True, slots=True)
class Samples:
    """Labelled items.

    Attributes:
        inputs: Arrays by the network's input names, items first.
        labels: The right class of each item, shape (items,); None: not known.
    """

    inputs: Mapping[str, Array]
    labels: Array | None

    def __len__(self) -> int:
        return min(map(len, self.inputs.values()))

    def part(self, first: int, end: int | None = None) -> Samples:
        """Return the items from `first` up to `end`."""
        labels = None if self.labels is None else self.labels[first:end]
        return Samples({name: array[first:end] for name, array in self.inputs.items()}, labels)


@dataclass(frozen=True, slots=True)
class Values:
    """An array on its way from the process that read it.

    Attributes:
        datatype: numpy's name of it.
        shape: Its sizes.
        base64: Its values in the order of C, little-endian.
    """

    datatype: Annotated[str, Field(max_length=20)]
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=32)]
    base64: str

    @classmethod
    def of(cls, array: Array) -> Values:
        """Return an array as text."""
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        content = base64.b64encode(little.tobytes()).decode()
        return cls(little.dtype.name, tuple(array.shape), content)

    def array(self) -> Array:
        """Return the array.

        Raises:
            InvalidArgument: It has no numbers, or another number of them.
        """
        try:
            datatype = np.dtype(self.datatype).newbyteorder("<")
            content = base64.b64decode(self.base64, validate=True)
        except (TypeError, binascii.Error) as error:
            raise InvalidArgument(f"{self.datatype}: {error}") from error
        if datatype.kind not in _NUMBERS or math.prod(self.shape) * datatype.itemsize != len(
            content
        ):
            raise InvalidArgument(f"{self.datatype} of {self.shape} is no array of numbers")
        return np.frombuffer(content, datatype).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Items:
    """Some items of a validation set.

    Attributes:
        inputs: By the network's input names, items first.
        labels: Their right classes; None: not known, or no numbers.
        count: Items of the whole set.
    """

    inputs: Mapping[str, Values]
    labels: Values | None
    count: Annotated[int, Field(ge=1)]

    def samples(self) -> Samples:
        """Return these items."""
        labels = None if self.labels is None else self.labels.array()
        return Samples({name: each.array() for name, each in self.inputs.items()}, labels)


def some_items(file: Path, inputs: Sequence[str], first: int, count: int) -> Items:
    """Return items of a validation set, as a confined process reads them.

    Args:
        file: The set.
        inputs: Names of the network's inputs.
        first: Index of the first item; beyond the last, there are none.
        count: Most of them.

    Raises:
        NotFound: The file does not exist.
        InvalidArgument: As `read_samples`; or the items are too large.
    """
    return confined(
        _some_items, file, inputs, first, count,
        file=file, reads=[file], answer_bytes=_PART_BYTES,
    )  # fmt: skip


def _some_items(file: Path, inputs: Sequence[str], first: int, count: int) -> Items:
    samples = read_samples(file, inputs)
    part = samples.part(first, first + count)
    labels = part.labels
    known = labels is not None and labels.dtype.kind in _NUMBERS
    return Items(
        {name: Values.of(array) for name, array in part.inputs.items()},
        Values.of(labels) if labels is not None and known else None,
        len(samples),
    )


def read_samples(file: Path, inputs: Sequence[str]) -> Samples:
    """Return the samples of a file for a network with these inputs. Call it in a confined process.

    Arrays are found by the inputs' names; a network with one input takes the only other array under
    any name.

    Raises:
        NotFound: The file does not exist.
        InvalidArgument: It is no .npz file of numbers, an input's array is missing, or the arrays
            have different numbers of items.
    """
    arrays = _arrays(file)
    labels = next((arrays.pop(name) for name in LABELS if name in arrays), None)
    if len(inputs) == 1 and len(arrays) == 1:
        arrays = {inputs[0]: next(iter(arrays.values()))}
    missing = [name for name in inputs if name not in arrays]
    if missing:
        raise InvalidArgument(
            f"{file}: no array for input {missing[0]!r}; it has {', '.join(arrays) or 'none'}"
        )
    found = Samples({name: arrays[name] for name in inputs}, labels)
    sizes = {name: len(array) for name, array in found.inputs.items()}
    if labels is not None:
        sizes["labels"] = len(labels)
    if len(set(sizes.values())) > 1:
        raise InvalidArgument(f"{file}: arrays of different lengths: {sizes}")
    if not len(found):
        raise InvalidArgument(f"{file}: it has no items")
    return found


def _arrays(file: Path) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as content:
            names = content.files if isinstance(content, np.lib.npyio.NpzFile) else None
            found = {name: content[name] for name in names or ()}
    except FileNotFoundError as error:
        raise NotFound(f"there is no {file}") from error
    except MemoryError:
        raise
    except Exception as error:  # numpy's, zipfile's and zlib's errors share no base class
        raise InvalidArgument(f"{file} is not an .npz file of numbers: {error}") from error
    if names is None:
        raise InvalidArgument(f"{file} is one array; np.savez(FILE, images=..., labels=...)")
    for name, array in found.items():
        if not array.ndim:
            raise InvalidArgument(f"{file}: {name!r} is a single value, not an array of items")
    return found
