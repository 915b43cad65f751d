"""A validation set: labelled items, as arrays in an .npz file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from services.kit.errors import InvalidArgument, NotFound

LABELS: Final = ("labels", "label", "y", "targets")
"""Names under which the right answers are looked for, in this order."""

Array = NDArray[Any]


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


def read_samples(file: Path, inputs: Sequence[str]) -> Samples:
    """Return the samples of a file for a network with these inputs.

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
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise InvalidArgument(
                    f"{file} is one array; np.savez(FILE, images=..., labels=...)"
                )
            found = {name: content[name] for name in content.files}
    except FileNotFoundError as error:
        raise NotFound(f"there is no {file}") from error
    except (OSError, ValueError, BadZipFile, EOFError) as error:
        raise InvalidArgument(f"{file} is not an .npz file of numbers: {error}") from error
    scalars = [name for name, array in found.items() if not array.ndim]
    if scalars:
        raise InvalidArgument(f"{file}: {scalars[0]!r} is a single value, not an array of items")
    return found
