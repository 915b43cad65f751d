"""Baselines: the commonest class, and linear models on TF-IDF."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.predictor.training.core.fit import Edges, true_classes
from services.predictor.training.core.metrics import Measures, measure
from services.predictor.training.core.rows import Row, by_model

MAJORITY = "majority"
CLASSIFIED = "TF-IDF + ridge, logistic"
REGRESSED = "TF-IDF + ridge"


def baselines(
    trained: Sequence[Row], tested: Sequence[Row], edges: Edges
) -> dict[str, dict[str, Measures]]:
    """Return the measures of the baselines, by served model and name.

    Each served model has its own. "TF-IDF + ridge, logistic": classes by logistic regression,
    order by ridge regression on the logarithm of the length; "TF-IDF + ridge": both by ridge.
    """
    train_rows = by_model(trained)
    return {
        model: _of_one(train_rows[model], rows, edges) for model, rows in by_model(tested).items()
    }


def _of_one(trained: Sequence[Row], tested: Sequence[Row], edges: Edges) -> dict[str, Measures]:
    # scikit-learn takes a second to import: only for those who train.
    from sklearn.linear_model import LogisticRegression, Ridge  # noqa: PLC0415

    classes, true = true_classes(trained, edges), true_classes(tested, edges)
    tokens = np.array([row.tokens for row in tested], np.float64)
    commonest = np.full(len(true), np.bincount(classes).argmax())
    known, unseen = _features([row.prompt for row in trained], [row.prompt for row in tested])
    lengths = np.log1p([row.tokens for row in trained])
    predicted = Ridge(alpha=1.0).fit(known, lengths).predict(unseen)
    limits = np.log1p(edges[tested[0].model])
    called = commonest
    if len(np.unique(classes)) > 1:
        called = LogisticRegression(max_iter=300, C=3).fit(known, classes).predict(unseen)
    return {
        MAJORITY: measure(true, tokens, commonest, np.zeros(len(true))),
        REGRESSED: measure(true, tokens, np.searchsorted(limits, predicted), predicted),
        CLASSIFIED: measure(true, tokens, called, predicted),
    }


def _features(trained: Sequence[str], unseen: Sequence[str]) -> tuple[Any, Any]:
    """Return the TF-IDF matrix of the prompts; zeros where no word occurs twice."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - the same

    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2, max_features=50_000)
    try:
        return words.fit_transform(trained), words.transform(unseen)
    except ValueError:  # too few prompts, or an empty vocabulary: scikit-learn raises it for both
        return np.zeros((len(trained), 1)), np.zeros((len(unseen), 1))
