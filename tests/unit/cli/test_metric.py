"""Metrics of answers: from worthless, 0, to perfect, 1."""

from typing import Any

import numpy as np
import pytest

from services.cli.init.metric import Metric, parse, score
from services.kit.errors import InvalidArgument


def answers(*rows: Any, kind: str = "f8") -> list[dict[str, Any]]:
    return [{"y": np.array(row, kind)} for row in rows]


def texts(*rows: str) -> list[dict[str, Any]]:
    return [{"y": np.array([row], object)} for row in rows]


BOX = np.array([0.0, 0, 2, 2])
SEEN = {
    "boxes": np.array([BOX, BOX + 5]),
    "scores": np.array([0.9, 0.1]),
    "labels": np.array([7, 8]),
}

CASES: dict[str, tuple[Metric, Any, Any, float]] = {
    "largest score": (Metric.ACCURACY, answers([0.1, 0.9], [0.8, 0.2]), np.array([1, 1]), 0.5),
    "integers": (Metric.ACCURACY, answers(1, 2, kind="i8"), np.array([1, 2]), 1),
    "text classes": (Metric.ACCURACY, texts("cat", "dog"), np.array(["cat", "cow"], object), 0.5),
    "one probability": (Metric.ACCURACY, answers([0.7], [0.2]), np.array([1, 1]), 0.5),
    "squares": (Metric.MSE, answers(0, 2, 4), np.array([0.0, 2, 4]), 1),
    "squares, the mean": (Metric.MSE, answers(2, 2, 2), np.array([0.0, 2, 4]), 0),
    "squares, half": (Metric.MSE, answers(0, 2, 2), np.array([0.0, 2, 4]), 0.5),
    "absolute, half": (Metric.MAE, answers(0, 2, 2), np.array([0.0, 2, 4]), 0.5),
    "absolute, worse": (Metric.MAE, answers(9, 9, 9), np.array([0.0, 2, 4]), 0),
    "squares, after a class": (
        Metric.MSE,
        [{"label": np.array(1), "y": np.array([value])} for value in (0.0, 2.0, 2.0)],
        np.array([0.0, 2, 4]),
        0.5,
    ),
    "one direction": (Metric.EMBEDDING_COSINE, answers([2, 0]), np.array([[1.0, 0]]), 1),
    "right angle": (Metric.EMBEDDING_COSINE, answers([0, 3]), np.array([[1.0, 0]]), 0),
    "boxes": (Metric.IOU, answers([[9, 9, 9, 9], [0, 0, 2, 1]]), [BOX], 0.5),
    "a box too many": (Metric.IOU, answers([[0, 0, 2, 2], [5, 5, 6, 6]]), [BOX], 2 / 3),
    "one box twice": (Metric.IOU, answers([[0, 0, 2, 2], [0, 0, 2, 2]]), [BOX], 2 / 3),
    "a missing box": (Metric.IOU, answers([BOX]), [np.array([BOX, BOX + 5])], 2 / 3),
    "no box": (Metric.IOU, answers(np.zeros((0, 4))), [np.array([BOX])], 0),
    "no box where there is none": (Metric.IOU, answers(np.zeros((0, 4))), [np.zeros((3, 4))], 1),
    "boxes of scores and classes": (Metric.IOU, [SEEN], [np.array([[0.0, 0, 2, 2, 7]])], 1),
    "a box of another class": (Metric.IOU, [SEEN], [np.array([[0.0, 0, 2, 2, 8]])], 0),
    "boxes of another network": (Metric.IOU, [SEEN], [SEEN], 1),
    "rows of box, score and class": (
        Metric.IOU,
        answers([[0, 0, 2, 2, 0.9, 7], [0, 0, 2, 2, 0.1, 7]]),
        [np.array([[0.0, 0, 2, 2, 7], [0, 0, 0, 0, 0]])],
        1,
    ),
    "masks": (Metric.IOU, answers([[1, 1], [0, 0]], kind="i8"), [np.array([[1, 0], [0, 0]])], 0.5),
    "masks by score": (Metric.IOU, answers([0.9, 0.2]), [np.array([1, 0])], 1),
    "text": (Metric.TEXT, texts("abcd", ""), np.array(["abxd", "ab"], object), 0.375),
    "agreement of classes": (
        Metric.AGREEMENT,
        answers([1, 0], [0, 1]),
        answers([3, 2], [3, 2]),
        0.5,
    ),
    "agreement of vectors": (Metric.AGREEMENT, answers(np.eye(2)), answers(2 * np.eye(2)), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_each_metric_by_hand(case: str) -> None:
    metric, given, right, expected = CASES[case]
    assert score(metric, given, right) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metric", "given", "right", "said"),
    [
        (Metric.ACCURACY, answers(np.eye(2)), [0], r"no output has a class .*y \[2, 2\]"),
        (Metric.TEXT, answers([1]), ["a"], "no output has texts"),
        (Metric.IOU, answers(np.zeros((84, 840))), [np.array([BOX])], "decoding and NMS"),
        (Metric.MSE, answers([1, 2]), np.array([1.0]), "has 2 numbers, and the right one 1"),
    ],
)
def test_what_cannot_be_compared_is_named(
    metric: Metric, given: Any, right: Any, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        score(metric, given, right)


def test_an_unknown_metric_names_the_others() -> None:
    with pytest.raises(InvalidArgument, match=r"accuracy, mse, mae, .*FILE:FUNCTION"):
        parse("f1")
