"""A validation set: labelled items, as arrays in an .npz or .npy file."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
TEXTS: Final = "str"


@dataclass(frozen=True, slots=True)
class Input:
    """An input as its network describes it.

    Attributes:
        name: Its name.
        shape: Sizes of a request's tensor; None: free. None instead of all: not known.
    """

    name: str
    shape: tuple[int | None, ...] | None = None

    @classmethod
    def of(cls, name: str, shape: Sequence[int]) -> Input:
        """Return an input as the Open Inference Protocol describes it: -1 is a free size."""
        return cls(name, tuple(None if size < 0 else size for size in shape))


@dataclass(frozen=True, slots=True)
class Column:
    """The values of an input in all items.

    Attributes:
        array: The values.
        rows: Rows of an item; 0: each item has all of them.
        scalar: A row is an item's tensor, which has no sizes.
    """

    array: Array
    rows: int = 1
    scalar: bool = False

    @classmethod
    def of(cls, array: Array, wanted: Input) -> Column:
        """Return an array as the values of an input.

        One size more than the tensor has: items come first. As many, and the first size is free:
        its rows are items. As many, and it is fixed: blocks of so many rows are items.

        Raises:
            InvalidArgument: Its sizes are not the input's.
        """
        shape = wanted.shape if wanted.shape is not None else (None,) * max(array.ndim, 1)
        extra = array.ndim - len(shape)
        inner = array.shape[extra:] if extra >= 0 else ()
        fits = extra in {0, 1} and all(
            size is None or size == found or (extra == place == 0 and size and not found % size)
            for place, (size, found) in enumerate(zip(shape, inner, strict=False))
        )
        if not fits:
            sizes = ", ".join("?" if size is None else str(size) for size in shape)
            raise InvalidArgument(
                f"{wanted.name!r} has {_sizes(array.shape)}; a request's tensor is [{sizes}], "
                "or items of it come first"
            )
        if not shape:
            return cls(array, extra, scalar=bool(extra))
        if extra:
            rows = array.shape[1]
            return cls(array.reshape(-1, *array.shape[2:]), rows or 1)
        whole = shape[0] is not None and shape[0] == len(array)
        return cls(array, 0 if whole else shape[0] or 1)

    def __len__(self) -> int:
        """Return the number of items; 0: any."""
        return len(self.array) // self.rows if self.rows else 0

    def part(self, first: int, end: int | None) -> Column:
        """Return the items from `first` up to `end`."""
        if not self.rows:
            return self
        rows = slice(first * self.rows, None if end is None else end * self.rows)
        return replace(self, array=self.array[rows])

    def tensor(self) -> Array:
        """Return a request's tensor: of all items, or of the only one where they have no size."""
        return self.array.reshape(()) if self.scalar else self.array


@dataclass(frozen=True, slots=True)
class Samples:
    """Labelled items.

    Attributes:
        columns: By the network's input names.
        labels: The right answers, one or several for each item; None: not known.
    """

    columns: Mapping[str, Column]
    labels: Array | None

    def __len__(self) -> int:
        return max(map(len, self.columns.values())) or 1

    @property
    def tensors(self) -> Mapping[str, Array]:
        """A request with all items; with the only one where a tensor has no first size of items."""
        return {name: column.tensor() for name, column in self.columns.items()}

    def part(self, first: int, end: int | None = None) -> Samples:
        """Return the items from `first` up to `end`."""
        labels = self.labels
        if labels is not None:
            each = len(labels) // len(self)
            labels = labels[first * each : None if end is None else end * each]
        columns = {name: column.part(first, end) for name, column in self.columns.items()}
        return Samples(columns, labels)


@dataclass(frozen=True, slots=True)
class Values:
    """An array on its way from the process that read it.

    Attributes:
        datatype: numpy's name of it; "str": texts.
        shape: Its sizes.
        base64: Its values in the order of C, little-endian; of texts, a list of them in JSON.
    """

    datatype: Annotated[str, Field(max_length=20)]
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=32)]
    base64: str

    @classmethod
    def of(cls, array: Array) -> Values:
        """Return an array as text."""
        if array.dtype == object:
            texts = json.dumps(array.ravel().tolist()).encode()
            return cls(TEXTS, tuple(array.shape), base64.b64encode(texts).decode())
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        content = base64.b64encode(little.tobytes()).decode()
        return cls(little.dtype.name, tuple(array.shape), content)

    def array(self) -> Array:
        """Return the array.

        Raises:
            InvalidArgument: It has no numbers or texts, or another number of them.
        """
        try:
            content = base64.b64decode(self.base64, validate=True)
            if self.datatype == TEXTS:
                return _texts(json.loads(content), self.shape)
            datatype = np.dtype(self.datatype).newbyteorder("<")
        except (TypeError, ValueError, binascii.Error) as error:
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
        requests: A tensor for each input, by name.
        labels: Their right answers; None: not known.
        count: Items of the whole set.
    """

    requests: tuple[Mapping[str, Values], ...]
    labels: Values | None
    count: Annotated[int, Field(ge=1)]

    def tensors(self) -> Sequence[Mapping[str, Array]]:
        """Return a tensor for each input, by name, of each item."""
        return [{name: each.array() for name, each in request.items()} for request in self.requests]

    def classes(self) -> Sequence[int] | None:
        """Return the right class of each item; None: not known, or no numbers."""
        labels = None if self.labels is None else self.labels.array()
        if labels is None or labels.dtype.kind not in "iu" or labels.size != len(self.requests):
            return None
        return [int(label) for label in labels.ravel()]


def some_items(file: Path, inputs: Sequence[Input], first: int, count: int) -> Items:
    """Return items of a validation set, as a confined process reads them.

    Args:
        file: The set.
        inputs: The network's inputs.
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


def _some_items(file: Path, inputs: Sequence[Input], first: int, count: int) -> Items:
    samples = read_samples(file, inputs)
    last = min(first + count, len(samples))
    parts = [samples.part(place, place + 1).tensors for place in range(first, last)]
    labels = samples.part(first, last).labels
    known = labels is not None and labels.dtype.kind in _NUMBERS + "O"
    return Items(
        tuple({name: Values.of(array) for name, array in part.items()} for part in parts),
        Values.of(labels) if labels is not None and known else None,
        len(samples),
    )


def array_names(file: Path) -> list[str]:
    """Return the names of a validation set's arrays but its labels, as a confined process does.

    Raises:
        NotFound, InvalidArgument: As `read_samples`.
    """
    return confined(_array_names, file, file=file, reads=[file])


def _array_names(file: Path) -> list[str]:
    return [name for name in _arrays(file) if name not in LABELS]


def read_samples(file: Path, inputs: Sequence[Input]) -> Samples:
    """Return the samples of a file for a network with these inputs. Call it in a confined process.

    Arrays are found by the inputs' names; a network with one input takes the only other array under
    any name.

    Raises:
        NotFound: The file does not exist.
        InvalidArgument: The file holds other things than numbers and texts, an input's array is
            missing or has other sizes, or the arrays have different numbers of items.
    """
    arrays = _arrays(file)
    labels = next((arrays.pop(name) for name in LABELS if name in arrays), None)
    if len(inputs) == 1 and len(arrays) == 1:
        arrays = {inputs[0].name: next(iter(arrays.values()))}
    missing = [each.name for each in inputs if each.name not in arrays]
    if missing:
        raise InvalidArgument(
            f"{file}: no array for input {missing[0]!r}; it has {', '.join(arrays) or 'none'}"
        )
    if any(not array.size and array.ndim for array in arrays.values()):
        raise InvalidArgument(f"{file}: it has no items")
    try:
        found = Samples({each.name: Column.of(arrays[each.name], each) for each in inputs}, labels)
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error.message}") from error
    sizes = {name: len(column) for name, column in found.columns.items() if column.rows}
    if len(set(sizes.values())) > 1:
        raise InvalidArgument(f"{file}: arrays of different lengths: {sizes}")
    if labels is not None and (not labels.ndim or not len(labels) or len(labels) % len(found)):
        sizes["labels"] = len(labels) if labels.ndim else 0
        raise InvalidArgument(f"{file}: arrays of different lengths: {sizes}")
    return found


def read_array(file: Path) -> Array:
    """Return the array in a .npy file, as a confined process reads it.

    Raises:
        NotFound: The file does not exist.
        InvalidArgument: It holds no array of numbers or texts, or too large a one.
    """
    found = confined(_values, file, file=file, reads=[file], answer_bytes=_PART_BYTES)
    return found.array()


def _values(file: Path) -> Values:
    return Values.of(_array(file))


def _array(file: Path) -> Array:
    try:
        with file.open("rb") as opened:
            array: Array = np.lib.format.read_array(opened, allow_pickle=False)
    except FileNotFoundError as error:
        raise NotFound(f"there is no {file}") from error
    except (ValueError, MemoryError, EOFError, SyntaxError) as error:
        raise InvalidArgument(f"{file} is not a .npy array of numbers or texts") from error
    if array.dtype.kind not in _NUMBERS + "US":
        raise InvalidArgument(f"{file} has {array.dtype} in it; numbers and texts can be sent")
    return _sent(array)


def _arrays(file: Path) -> dict[str, Array]:
    if file.suffix == ".npy":
        return {"": _array(file)}
    try:
        with np.load(file, allow_pickle=False) as content:
            names = content.files if isinstance(content, np.lib.npyio.NpzFile) else None
            found = {name: content[name] for name in names or ()}
    except FileNotFoundError as error:
        raise NotFound(f"there is no {file}") from error
    except MemoryError:
        raise
    except Exception as error:  # numpy's, zipfile's and zlib's errors share no base class
        hint = " (of texts: np.array(TEXTS, dtype=str))" if "allow_pickle" in str(error) else ""
        raise InvalidArgument(
            f"{file} is not an .npz file of numbers and texts{hint}: {error}"
        ) from error
    if names is None:
        raise InvalidArgument(f"{file} is one array; np.savez(FILE, images=..., labels=...)")
    return {name: _sent(array) for name, array in found.items()}


def _sent(array: Array) -> Array:
    """Return an array whose texts are Python's: ONNX Runtime takes no others."""
    if array.dtype.kind not in "US":
        return array
    texts = (
        str(each, "utf-8", "replace") if isinstance(each, bytes) else str(each)
        for each in array.ravel()
    )
    return _texts(list(texts), array.shape)


def _texts(values: Any, shape: tuple[int, ...]) -> Array:
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise ValueError("no list of texts")
    found = np.empty(len(values), object)
    found[:] = values
    return found.reshape(shape)


def _sizes(shape: Sequence[int]) -> str:
    return f"sizes {', '.join(map(str, shape))}" if shape else "no sizes: it is a single value"
