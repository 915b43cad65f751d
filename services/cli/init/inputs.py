"""Knowledge of a network's inputs: by --shape, or from the validation set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from services.cli.samples import Array, Input, array_names, read_samples, some_items
from services.kit.errors import InvalidArgument
from services.kit.operators.random_inputs import DATATYPES

EXAMPLE_ITEMS: Final = 2
"""Items of the example that is traced: torch.export takes a size of 1 for fixed."""

_PIXELS: Final = "224"
_LENGTH: Final = "128"
"""Sizes in advice, of images and of others."""

_IMAGE_SIZES: Final = 3
"""Sizes of an image, without the batch."""


@dataclass(frozen=True, slots=True)
class KnownInputs:
    """Statements of the operator on the inputs.

    Attributes:
        shapes: Sizes of one item by the input's name; "" is the only input.
        data: Validation set; None: none.
    """

    shapes: Mapping[str, tuple[int, ...]]
    data: Path | None

    def first_item(self, inputs: Sequence[Any]) -> Mapping[str, Array]:
        """Return the tensors of the validation set's first item; none where there is no set.

        Call it in a confined process: it reads the validation set.

        Args:
            inputs: As ONNX Runtime describes them.

        Raises:
            InvalidArgument: The set does not fit the network.
        """
        if self.data is None:
            return {}
        samples = read_samples(self.data, [input_of(each) for each in inputs])
        return cast(samples.part(0, 1).tensors, inputs)

    def item_shapes(
        self, inputs: Sequence[Any], example: Mapping[str, Array]
    ) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of one item, without the batch, of inputs that leave sizes free.

        Sizes of one name are one size: those of one input give another's.

        Args:
            inputs: As ONNX Runtime describes them.
            example: Tensors of an item, where they are known.

        Raises:
            InvalidArgument: A size is not known; the message has the options that say it.
        """
        shapes = {name: array.shape[1:] for name, array in example.items()}
        shapes |= self._given([each.name for each in inputs])
        named = {each.shape[0]: 1 for each in inputs if each.shape}  # the batch
        for each in inputs:
            named.update(zip(each.shape[1:], shapes.get(each.name, ()), strict=False))
        named = {name: size for name, size in named.items() if isinstance(name, str)}
        found, advice = {}, list[str]()
        for each in inputs:
            sizes = [named.get(s, s) if isinstance(s, str) else s for s in each.shape[1:]]
            if each.name in shapes:
                found[each.name] = shapes[each.name]
            elif all(map(_is_size, sizes)):
                found[each.name] = tuple(sizes)
            else:
                other = _PIXELS if len(sizes) == _IMAGE_SIZES else _LENGTH
                said = ",".join(str(size) if _is_size(size) else other for size in sizes)
                advice.append(f"--shape {each.name}={said}")
                named.update({s: 1 for s in each.shape[1:] if isinstance(s, str)})
        if advice:
            raise InvalidArgument(
                "--shape: arithmetic depends on sizes that it leaves free; give those of an item, "
                f"{' '.join(advice)}, or a validation set, --data"
            )
        return found

    def example(self, needed: Sequence[str], others: Sequence[str] = ()) -> Mapping[str, Array]:
        """Return two items for inputs: of the validation set, or zeros in their shapes.

        Args:
            needed: Inputs that must be there.
            others: Inputs that are there if the set or the shapes have them.

        Raises:
            InvalidArgument: An input is not known, or none is.
        """
        known = {*self.shapes} | ({*array_names(self.data)} if self.data and others else set())
        names = [*needed, *(each for each in others if each in known)]
        if not names:
            raise InvalidArgument(
                f"--data: has no array for an input; they are {', '.join(others) or 'none'}"
                if self.data
                else f"--data: nothing says which inputs are sent, of {', '.join(others)}; give a "
                "validation set with an array for each, or their sizes, --shape NAME=SIZES"
            )
        if self.data is not None:
            items = some_items(self.data, [*map(Input, names)], 0, EXAMPLE_ITEMS).tensors()
            found = {name: np.concatenate([each[name] for each in items]) for name in names}
            found = {name: np.resize(a, (EXAMPLE_ITEMS, *a.shape[1:])) for name, a in found.items()}
            return {
                name: a.astype("float32") if a.dtype.kind == "f" else a for name, a in found.items()
            }
        shapes = self._given(names)
        missing = next((name for name in names if name not in shapes), None)
        if missing is not None:
            raise InvalidArgument(
                f"--shape: nothing says how large an item of {missing!r} is; give its sizes, "
                f"--shape {missing}=3,224,224, or a validation set, --data"
            )
        return {name: np.zeros((EXAMPLE_ITEMS, *shapes[name]), "float32") for name in names}

    def _given(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        shapes = dict(self.shapes)
        if "" in shapes:
            if len(names) != 1:
                raise InvalidArgument(
                    f"--shape: NAME=SIZES is needed, as there are {', '.join(names)}"
                )
            shapes[names[0]] = shapes.pop("")
        unknown = next((each for each in shapes if each not in names), None)
        if unknown is not None:
            raise InvalidArgument(f"--shape: no input {unknown!r}; it has {', '.join(names)}")
        return shapes


def input_of(described: Any) -> Input:
    """Return an input as ONNX Runtime describes it."""
    return Input(
        described.name, tuple(size if _is_size(size) else None for size in described.shape)
    )


def cast(tensors: Mapping[str, Array], inputs: Sequence[Any]) -> dict[str, Array]:
    """Return tensors in the types that the network takes.

    Raises:
        InvalidArgument: One cannot be converted.
    """
    return dict(_cast(tensors, inputs))


def _cast(tensors: Mapping[str, Array], inputs: Sequence[Any]) -> Iterator[tuple[str, Array]]:
    for each in inputs:
        array, datatype = tensors[each.name], DATATYPES.get(each.type)
        if (array.dtype == object) != (datatype is None):
            has = "texts" if array.dtype == object else "numbers"
            raise InvalidArgument(f"{each.name} is {each.type}, and its array has {has}")
        yield each.name, array if datatype is None else array.astype(datatype, copy=False)


def _is_size(size: object) -> bool:
    return isinstance(size, int) and size >= 0
