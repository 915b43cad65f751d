"""Random inputs for a model, with chosen free sizes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.kit.errors import InvalidArgument

Array = NDArray[Any]

DATATYPES: Final = {
    "tensor(bool)": "bool",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    **{f"tensor({name})": name for name in ("int8", "int16", "int32", "int64")},
    **{f"tensor({name})": name for name in ("uint8", "uint16", "uint32", "uint64")},
}
"""numpy's name by ONNX Runtime's."""

STRING: Final = "tensor(string)"
"""ONNX Runtime's name of texts."""

MAX_VALUES: Final = 2**27
"""Most values of all inputs together: 1 GiB while they are drawn."""

_MAX_RANK: Final = 32


@dataclass(frozen=True, slots=True)
class Sizes:
    """Free sizes of a model.

    Attributes:
        batch: The first of a tensor.
        other: Any other that `items` does not give.
        items: Shapes of one item, without the batch, by the input's name.
        texts: Values of strings.
    """

    batch: int = 1
    other: int = 16
    items: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    texts: tuple[str, ...] = ("",)


def drawn(
    inputs: Sequence[Any],
    sizes: Sizes,
    seed: int,
    example: Mapping[str, Array] | None = None,
) -> Mapping[str, Array]:
    """Return an array for each input.

    Floats are normal. Integers are 0 or 1, and 1 first: valid masks, and indices of any table.
    Texts are those of `sizes`.

    Args:
        inputs: As ONNX Runtime describes them (`InferenceSession.get_inputs()`).
        sizes: Values of the free sizes.
        seed: Seed of the values.
        example: Arrays that are taken instead, repeated along a free first size.

    Raises:
        InvalidArgument: An input is no tensor, or the inputs are too large.
    """
    known = {
        each.name: _repeated(each, example[each.name], sizes.batch)
        for each in inputs
        if example and each.name in example
    }
    inputs = [each for each in inputs if each.name not in known]
    shapes = {each.name: _shape(each, sizes) for each in inputs}
    count = sum(map(math.prod, shapes.values()))
    if count > MAX_VALUES or any(len(shape) > _MAX_RANK for shape in shapes.values()):
        raise InvalidArgument(
            f"its inputs have {count} values; at most {MAX_VALUES}, in {_MAX_RANK} dimensions, can"
            " be run here"
        )
    rng = np.random.default_rng(seed)
    found = {each.name: _array(each, shapes[each.name], rng, sizes.texts) for each in inputs}
    return {**known, **found}


def _repeated(wanted: Any, array: Array, batch: int) -> Array:
    if wanted.shape and not _fixed(wanted.shape[0]):
        return np.resize(array, (batch, *array.shape[1:]))
    return array


def batches(inputs: Sequence[Any]) -> bool:
    """Return whether the first size of every input is free."""
    return all(each.shape and not _fixed(each.shape[0]) for each in inputs)


def free(inputs: Sequence[Any]) -> bool:
    """Return whether any size is free."""
    return any(not _fixed(size) for each in inputs for size in each.shape)


def free_items(inputs: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of inputs with a free size other than the first."""
    return tuple(each.name for each in inputs if not all(map(_fixed, each.shape[1:])))


def _shape(wanted: Any, sizes: Sizes) -> tuple[int, ...]:
    item = sizes.items.get(wanted.name, (sizes.other,) * len(wanted.shape[1:]))
    if len(item) != len(wanted.shape[1:]):
        raise InvalidArgument(
            f"input {wanted.name} has {len(wanted.shape[1:])} sizes after the first; {len(item)} "
            f"were given: {','.join(map(str, item))}"
        )
    free = (sizes.batch, *item)
    return tuple(size if _fixed(size) else free[axis] for axis, size in enumerate(wanted.shape))


def _array(
    wanted: Any, shape: tuple[int, ...], rng: np.random.Generator, texts: Sequence[str]
) -> Array:
    if wanted.type == STRING:
        return rng.choice(np.array(texts, object), shape)
    datatype = DATATYPES.get(wanted.type)
    if datatype is None:
        raise InvalidArgument(
            f"input {wanted.name} is {wanted.type}: clients send tensors of numbers and texts"
        )
    if datatype.startswith("float"):
        return rng.standard_normal(shape).astype(datatype)
    values = rng.integers(0, 2, shape).astype(datatype)
    if values.size:
        values.flat[0] = 1
        if values.ndim:
            values[..., :1] = 1
    return values


def _fixed(size: object) -> bool:
    return isinstance(size, int) and size >= 0
