"""Accuracy of a network by a metric: 0 is worthless, 1 is perfect."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from services.cli.init.boxes import found_boxes, likeness, right_boxes
from services.cli.samples import Array
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound, ServiceError

Answer = Mapping[str, Array]
"""An item's outputs by name, without the batch."""

_THRESHOLD: Final = 0.5


class Metric(StrEnum):
    """Metrics that answers are compared by. One not named here is FILE:FUNCTION, of the user's."""

    ACCURACY = "accuracy"
    MSE = "mse"
    MAE = "mae"
    EMBEDDING_COSINE = "embedding-cosine"
    IOU = "iou"
    TEXT = "text"
    AGREEMENT = "agreement"


@dataclass(frozen=True, slots=True)
class Function:
    """A metric of the user's own code. Attributes: file (Python, which is run), name (in it)."""

    file: Path
    name: str


def parse(text: str) -> Metric | Function:
    """Return the metric that an option names.

    Raises:
        InvalidArgument: There is none of this name, and it is not FILE:FUNCTION.
        NotFound: There is no such file.
    """
    if text in {*Metric}:
        return Metric(text)
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise InvalidArgument(
            f"--metric {text}: one of {', '.join(Metric)}, or FILE:FUNCTION, such as score.py:score"
        )
    if not Path(file).is_file():
        raise NotFound(f"--metric: there is no {file}")
    return Function(Path(file), name)


def score(
    metric: Metric | Function, answers: Sequence[Answer], right: Sequence[Any] | Sequence[Answer]
) -> float:
    """Return the accuracy of answers, 0..1.

    Args:
        metric: How to compare.
        answers: One for each item.
        right: The right answer of each: a label, or what another network answered.

    Raises:
        InvalidArgument: The answers have nothing that the metric compares, or the user's function
            fails or returns no number from 0 to 1.
    """
    if isinstance(metric, Function):
        return _by_function(metric, answers, right)
    comparisons: Mapping[Metric, Callable[[Any, Any], float]] = {
        Metric.ACCURACY: _same_class,
        Metric.AGREEMENT: _agreement,
        Metric.EMBEDDING_COSINE: lambda one, other: _cosine(numbers(one), numbers(other)),
        Metric.IOU: _iou,
        Metric.TEXT: lambda one, other: _likeness(text_of(one), text_of(other)),
    }
    compared = comparisons.get(metric)
    if compared is None:
        return _of_error(metric, answers, right)
    return float(np.mean([compared(*pair) for pair in zip(answers, right, strict=True)]))


def class_of(answer: Any) -> Any:
    """Return an answer's class: its integer or text, or the place of its largest score.

    One score alone is a probability: class 1 from a half. A label is its own class.

    Raises:
        InvalidArgument: It has none.
    """
    if not isinstance(answer, Mapping):
        return answer.item() if isinstance(answer, np.generic | np.ndarray) else answer
    for each in answer.values():
        if each.dtype.kind in "iuOb" and each.size == 1:
            return each.item()
    for each in answer.values():
        if each.dtype.kind == "f" and each.ndim <= 1:
            return int(np.argmax(each)) if each.size > 1 else int(each.item() >= _THRESHOLD)
    raise InvalidArgument(
        f"no output has a class or a row of scores per item ({_described(answer)}): choose another "
        "--metric, or leave --data out and write `accuracy` yourself"
    )


def numbers(answer: Any) -> Array:
    """Return the first output of floating-point numbers, or else of any; a label as it is."""
    if not isinstance(answer, Mapping):
        return np.asarray(answer, np.float64).ravel()
    for kinds in ("f", "iub"):
        for each in answer.values():
            if each.dtype.kind in kinds:
                found: Array = each.astype(np.float64).ravel()
                return found
    raise InvalidArgument(f"no output has numbers ({_described(answer)})")


def text_of(answer: Any) -> str:
    """Return the texts of an answer, or of a label.

    Raises:
        InvalidArgument: It has none.
    """
    if not isinstance(answer, Mapping):
        return " ".join(map(str, np.ravel(answer)))
    for each in answer.values():
        if each.dtype == object:
            return " ".join(map(str, each.ravel()))
    raise InvalidArgument(
        f"no output has texts, or scores of characters in steps ({_described(answer)}): choose "
        "another --metric"
    )


def _same_class(answer: Answer, right: Any) -> bool:
    one, other = class_of(answer), class_of(right)
    return bool(str(one) == other if isinstance(other, str) else one == other)


def _agreement(answer: Answer, right: Answer) -> float:
    try:
        return float(_same_class(answer, right))
    except InvalidArgument:
        if any(each.dtype == object for each in answer.values()):
            return float(text_of(answer) == text_of(right))
        return _cosine(numbers(answer), numbers(right))


def _cosine(one: Array, other: Array) -> float:
    _require_size(one, other)
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return max(0.0, float(one @ other) / lengths) if lengths else float(np.array_equal(one, other))


def _of_error(metric: Metric, answers: Sequence[Answer], right: Sequence[Any]) -> float:
    """Return 1 less the error over that of a constant answer, which is the best there is."""
    found = [(numbers(one), numbers(other)) for one, other in zip(answers, right, strict=True)]
    for one, other in found:
        _require_size(one, other)
    one, other = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if metric == Metric.MSE:
        error, constant = np.mean((one - other) ** 2), np.mean((other - other.mean()) ** 2)
    else:
        error, constant = np.mean(abs(one - other)), np.mean(abs(other - np.median(other)))
    return max(0.0, float(1 - error / constant)) if constant else float(not error)


def _iou(answer: Answer, right: Any) -> float:
    """Return how much of what is found and what is right is both: of boxes, or of masks."""
    labelled = not isinstance(right, Mapping)
    wanted_boxes = right_boxes(right) if labelled else found_boxes(right)
    if wanted_boxes is not None:
        found = found_boxes(answer)
        if found is None:
            raise InvalidArgument(
                f"no output has boxes, [boxes, 4], or rows of box, score and class, [boxes, 6] "
                f"({_described(answer)}): export the network with its decoding and NMS, or choose "
                "--metric FILE:FUNCTION"
            )
        return likeness(found, wanted_boxes)
    expected = np.asarray(right) if labelled else next(iter(right.values()))
    truth = {"": expected} if labelled else right
    mask, wanted = (_mask(each, expected.ndim) for each in (answer, truth))
    _require_size(mask.ravel(), wanted.ravel())
    classes = [c for c in np.union1d(mask, wanted) if c] or [0]
    both = [
        ((mask == c) & (wanted == c)).sum() / ((mask == c) | (wanted == c)).sum() for c in classes
    ]
    return float(np.mean(both))


def _mask(answer: Answer, sizes: int) -> Array:
    """Return the class of each place: as stated, by the largest score, or by a threshold."""
    for each in answer.values():
        if each.dtype.kind in "iub":
            return each
        if each.dtype.kind == "f" and each.ndim == sizes + 1 and len(each) > 1:
            best: Array = np.argmax(each, axis=0)
            return best
        if each.dtype.kind == "f":
            return (each >= _THRESHOLD).astype(np.int64)
    raise InvalidArgument(f"no output has boxes or a mask ({_described(answer)})")


def _likeness(one: str, right: str) -> float:
    """Return 1 less the edits per character that make a text right, at least 0."""
    row = list(range(len(right) + 1))
    for place, letter in enumerate(one, start=1):
        ends = pairwise(row)
        next_row = [place]
        for (corner, above), wanted in zip(ends, right, strict=True):
            next_row.append(min(above + 1, next_row[-1] + 1, corner + (letter != wanted)))
        row = next_row
    return max(0.0, 1 - row[-1] / max(len(right), 1))


def _by_function(metric: Function, answers: Sequence[Answer], right: Sequence[Any]) -> float:
    outputs = {name: _together(each[name] for each in answers) for name in answers[0]}
    labels = None if not right or isinstance(right[0], Mapping) else _together(right)
    where = f"--metric {metric.file}:{metric.name}"
    try:
        function: Callable[..., Any] = runpy.run_path(str(metric.file))[metric.name]
        value = float(function(outputs, labels))
    except KeyError as error:
        raise NotFound(f"{where}: the file has no {metric.name}") from error
    except ServiceError:
        raise
    except Exception as error:  # of the user's code
        raise FailedPrecondition(f"{where}: {type(error).__name__}: {error}") from error
    if not 0 <= value <= 1:
        raise FailedPrecondition(f"{where} returned {value:g}; a number from 0 to 1 is needed")
    return value


def _together(arrays: Iterable[Any]) -> Array:
    """Return arrays as one, items first; as objects where their sizes differ."""
    parts = [np.asarray(each) for each in arrays]
    if len({each.shape for each in parts}) == 1:
        return np.stack(parts)
    found = np.empty(len(parts), object)
    for place, each in enumerate(parts):
        found[place] = each
    return found


def _require_size(one: Array, other: Array) -> None:
    if one.size != other.size:
        raise InvalidArgument(
            f"an item's answer has {one.size} numbers, and the right one {other.size}"
        )


def _described(answer: Answer) -> str:
    return ", ".join(f"{name} {list(each.shape)}" for name, each in answer.items())
