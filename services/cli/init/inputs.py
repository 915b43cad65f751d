"""Knowledge of a network's inputs: by --shape, or from the validation set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from services.cli.samples import Array, read_samples, some_items
from services.kit.errors import InvalidArgument

EXAMPLE_ITEMS: Final = 2
"""Items of the example that is traced: torch.export takes a size of 1 for fixed."""


@dataclass(frozen=True, slots=True)
class KnownInputs:
    """Statements of the operator on the inputs.

    Attributes:
        shapes: Sizes of one item by the input's name; "" is the only input.
        data: Validation set; None: none.
    """

    shapes: Mapping[str, tuple[int, ...]]
    data: Path | None

    def item_shapes(self, names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of one item, without the batch, of the inputs where they are known.

        Call it in a confined process: it reads the validation set.
        """
        shapes = self._given(names)
        if self.data is not None and not shapes.keys() >= set(names):
            of_data = read_samples(self.data, names).inputs
            shapes = {name: array.shape[1:] for name, array in of_data.items()} | shapes
        return shapes

    def example(self, names: Sequence[str]) -> Mapping[str, Array]:
        """Return two items for these inputs: of the validation set, or zeros in their shapes."""
        if self.data is not None:
            given = some_items(self.data, names, 0, EXAMPLE_ITEMS).samples().inputs
            found = {name: np.resize(a, (EXAMPLE_ITEMS, *a.shape[1:])) for name, a in given.items()}
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
