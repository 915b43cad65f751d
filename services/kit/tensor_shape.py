"""Shapes of tensors that others send: bounded before their sizes are multiplied."""

from collections.abc import Sequence
from typing import Final

from services.kit.errors import InvalidArgument

MAX_RANK: Final = 64
"""Sizes of a shape; numpy's own bound."""

MAX_ELEMENTS: Final = 2**40
"""Product of a shape's sizes, each 0 counted as 1: what numpy can index, too."""


def elements_of(shape: Sequence[int], *, field: str) -> int:
    """Return the number of elements of a tensor, the product of its sizes.

    Args:
        shape: Its sizes.
        field: Path of the shape, for errors.

    Raises:
        InvalidArgument: It has too many sizes, one is negative, or their product is too large.
    """
    if len(shape) > MAX_RANK:
        raise InvalidArgument.at(field, f"has {len(shape)} sizes, and may have {MAX_RANK}")
    product = 1
    for size in shape:
        product *= size or 1
        if not 0 < product <= MAX_ELEMENTS:
            raise InvalidArgument.at(
                field, f"sizes must be >= 0 and their product at most {MAX_ELEMENTS}"
            )
    return 0 if 0 in shape else product
