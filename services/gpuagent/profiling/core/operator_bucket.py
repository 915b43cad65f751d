"""Buckets of operators that take the same time: the key of the sensitivity database."""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.kit.operators.core.graph import Operator


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Operators of a type whose tensors have about the same shapes.

    Attributes:
        operator: Type, for example "Conv".
        datatype: What it computes in.
        shapes: What it takes and gives, sizes rounded: "1x64x64,64x64:1x64x64".
    """

    operator: str
    datatype: str
    shapes: str

    @classmethod
    def of(cls, operator: Operator) -> Bucket:
        """Return the bucket of an operator."""
        taken = len(operator.shapes) - len(operator.outputs)
        parts = [_text(shape) for shape in operator.shapes]
        shapes = f"{','.join(parts[:taken])}:{','.join(parts[taken:])}"
        return cls(operator.type, operator.datatype, shapes)


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(str(_rounded(size)) for size in shape) or "1"


def _rounded(size: int) -> int:
    """Return the nearest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: most layers are that wide."""
    if size < 1:
        return 0
    below = 1 << (size.bit_length() - 1)
    return min(below, below * 3 // 2, below * 2, key=lambda near: abs(math.log(near / size)))
