"""A predictor trained on a small log."""

from __future__ import annotations

import pytest

from services.predictor.training.fit import Trained, fit
from tests.unit.predictor.predictor_log import log


@pytest.fixture(scope="session")
def trained() -> Trained:
    return fit(log())
