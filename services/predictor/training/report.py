"""Evaluation of a predictor on prompts that it was not trained with."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.predictor.adapters.proxy_model import ProxyModel
from services.predictor.core.estimate import CLASS_COUNT
from services.predictor.training.core.fit import Edges, Embed, true_classes
from services.predictor.training.core.metrics import Measures, confusion, measure
from services.predictor.training.core.rows import Row, by_model

MODE, ORDINAL = "predictor", "predictor, ordinal"
"""The likeliest class; and the mean class, rounded, which is nearer where it is wrong."""


@dataclass(frozen=True, slots=True)
class Report:
    """Measures of several predictors on the same prompts.

    Attributes:
        rows: Number of tested answers by served model.
        measures: Measures by served model and predictor.
        confusion: Predicted classes (columns) by true class (rows), all models, shape (5, 5).
    """

    rows: dict[str, int]
    measures: dict[str, dict[str, Measures]]
    confusion: NDArray[np.int64]

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        return {
            "answers": self.rows,
            "measures": {
                model: {name: asdict(each) for name, each in found.items()}
                for model, found in self.measures.items()
            },
            "confusion": self.confusion.tolist(),
        }


def judge(
    proxy: ProxyModel,
    embed: Embed,
    tested: Sequence[Row],
    edges: Edges,
    beside: dict[str, dict[str, Measures]] | None = None,
) -> Report:
    """Return the report on a predictor.

    Args:
        proxy: The predictor.
        embed: Embeds prompts.
        tested: Answers to prompts that it was not trained with.
        edges: Edges of each served model's classes, tokens.
        beside: Measures of other predictors, by served model and name.
    """
    measures: dict[str, dict[str, Measures]] = {}
    counts = np.zeros((CLASS_COUNT, CLASS_COUNT), np.int64)
    for model, rows in by_model(tested).items():
        likely = np.array(
            [proxy.probabilities(row.prompt, embed(row.prompt), edges[model]) for row in rows]
        )
        true = true_classes(rows, edges)
        tokens = np.array([row.tokens for row in rows], np.float64)
        called, mean = likely.argmax(axis=1), likely @ np.arange(CLASS_COUNT)
        measures[model] = {
            **(beside or {}).get(model, {}),
            ORDINAL: measure(true, tokens, np.rint(mean).astype(np.int64), mean),
            MODE: measure(true, tokens, called, mean),
        }
        counts += confusion(true, called)
    return Report({m: len(rows) for m, rows in by_model(tested).items()}, measures, counts)
