"""Boxes that detectors find, and how far they are the right ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from services.cli.samples import Array

_CORNERS: Final = 4
"""Numbers of a box: x and y of two corners."""

_ROW: Final = 6
"""Numbers of a detection in one row: a box, its score, its class."""

_LABEL: Final = 5
"""Numbers of a label with a class: a box, its class."""

_LEAST: Final = 0.5
"""Score from which on a box counts as found."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of an item. Attributes: corners (a box a row), classes (of each; None: not known)."""

    corners: Array
    classes: Array | None

    @classmethod
    def of(cls, corners: Array, classes: Array | None, kept: Array) -> Boxes:
        """Return the boxes that are kept and have an area: others fill rows up."""
        corners = corners.astype(np.float64)
        kept = kept & np.all(corners[:, 2:] > corners[:, :2], axis=1)
        return cls(corners[kept], None if classes is None else classes[kept])


def found_boxes(answer: Mapping[str, Array]) -> Boxes | None:
    """Return the boxes of an answer with a score of a half at least; None: no output has boxes.

    Boxes are an output of four numbers each, with scores and classes as outputs of one number for
    each box; or rows of box, score and class.
    """
    outputs = [each for each in answer.values() if each.dtype.kind in "fiu"]
    for each in outputs:
        rows = _rows(each, _CORNERS)
        if rows is not None:
            alone = [one.ravel() for one in outputs if one is not each and one.size == len(rows)]
            scores = next((one for one in alone if one.dtype.kind == "f"), np.ones(len(rows)))
            classes = next((one for one in alone if one.dtype.kind in "iu"), None)
            return Boxes.of(rows, classes, scores >= _LEAST)
        rows = _rows(each, _ROW)
        if rows is not None:
            return Boxes.of(rows[:, :_CORNERS], rows[:, 5], rows[:, 4] >= _LEAST)
    return None


def right_boxes(label: Any) -> Boxes | None:
    """Return the boxes of a label: rows of a box, or of a box and its class; None: it has none."""
    array = np.asarray(label)
    for numbers in (_CORNERS, _LABEL):
        rows = _rows(array, numbers)
        if rows is not None:
            classes = rows[:, _CORNERS] if numbers == _LABEL else None
            return Boxes.of(rows[:, :_CORNERS], classes, np.ones(len(rows), bool))
    return None


def likeness(found: Boxes, right: Boxes) -> float:
    """Return the overlap (IoU) of boxes in pairs, as a share of the boxes on both sides.

    Pairs are of one class, and the best come first. A box without a partner counts half a pair:
    panoptic quality (Kirillov et al., 2019) without its threshold.
    """
    if not len(found.corners) and not len(right.corners):
        return 1.0
    overlaps = _overlaps(found.corners, right.corners)
    if found.classes is not None and right.classes is not None:
        overlaps = overlaps * (found.classes[:, None] == right.classes[None, :])
    total = 0.0
    for _ in range(min(overlaps.shape)):
        one, other = np.unravel_index(np.argmax(overlaps), overlaps.shape)
        total += overlaps[one, other]
        overlaps[one, :] = overlaps[:, other] = 0.0
    return float(2 * total / sum(overlaps.shape))


def _rows(array: Array, numbers: int) -> Array | None:
    """Return an array with so many numbers a row; None: it has others."""
    if array.ndim not in {1, 2} or array.shape[-1] != numbers:
        return None
    rows: Array = array.reshape(-1, numbers)
    return rows


def _overlaps(found: Array, right: Array) -> Array:
    low = np.maximum(found[:, None, :2], right[None, :, :2])
    high = np.minimum(found[:, None, 2:], right[None, :, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (found, right)]
    overlaps: Array = both / (areas[0][:, None] + areas[1][None, :] - both)
    return overlaps
