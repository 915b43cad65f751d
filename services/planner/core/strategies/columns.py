"""Columns of a program: their terms, and the keys that they share."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np

from services.planner.core.solver.milp import Numbers

Key = TypeVar("Key", bound=Hashable)


def terms_of(columns: Numbers, weights: Iterable[float]) -> dict[int, float]:
    """Return the weight of each column."""
    return dict(zip(columns.tolist(), map(float, weights), strict=True))


def distinct(keys: Iterable[Key]) -> tuple[list[Key], Numbers]:
    """Return the distinct keys in order, and the position of each key among them."""
    positions: dict[Key, int] = {}
    at = [positions.setdefault(key, len(positions)) for key in keys]
    return list(positions), np.array(at, dtype=np.int32)
