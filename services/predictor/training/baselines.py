"""What a predictor has to beat: the commonest class, and TF-IDF with linear models on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from services.predictor.training.core.fit import Edges, true_classes
from services.predictor.training.core.metrics import Measures, measure
from services.predictor.training.core.rows import Row, by_model

MAJORITY = "majority"
CLASSIFIED = "TF-IDF + ridge, logistic"
REGRESSED = "TF-IDF + ridge"


def baselines(
    trained: Sequence[Row], tested: Sequence[Row], edges: Edges
) -> dict[str, dict[str, Measures]]:
    """Return how good simple predictors are, by served model and name.

    Each served model has its own. "TF-IDF + ridge, logistic": classes by logistic regression,
    order by ridge regression on the logarithm of the length; "TF-IDF + ridge": both by ridge.
    """
    theirs = by_model(trained)
    return {model: _of_one(theirs[model], rows, edges) for model, rows in by_model(tested).items()}


def _of_one(trained: Sequence[Row], tested: Sequence[Row], edges: Edges) -> dict[str, Measures]:
    classes, true = true_classes(trained, edges), true_classes(tested, edges)
    tokens = np.array([row.tokens for row in tested], np.float64)
    commonest = np.full(len(true), np.bincount(classes).argmax())
    known, asked = _features([row.prompt for row in trained], [row.prompt for row in tested])
    lengths = np.log1p([row.tokens for row in trained])
    foretold = Ridge(alpha=1.0).fit(known, lengths).predict(asked)
    limits = np.log1p(edges[tested[0].model])
    called = commonest
    if len(np.unique(classes)) > 1:
        called = LogisticRegression(max_iter=300, C=3).fit(known, classes).predict(asked)
    return {
        MAJORITY: measure(true, tokens, commonest, np.zeros(len(true))),
        REGRESSED: measure(true, tokens, np.searchsorted(limits, foretold), foretold),
        CLASSIFIED: measure(true, tokens, called, foretold),
    }


def _features(trained: Sequence[str], asked: Sequence[str]) -> tuple[Any, Any]:
    """Return TF-IDF of prompts, sparse; where no word comes twice, words tell nothing: zeros."""
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2, max_features=50_000)
    try:
        return words.fit_transform(trained), words.transform(asked)
    except ValueError:  # too few prompts, or an empty vocabulary: scikit-learn tells both like this
        return np.zeros((len(trained), 1)), np.zeros((len(asked), 1))
