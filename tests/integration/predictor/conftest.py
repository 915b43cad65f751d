"""A predictor trained on a small log, and what makes vectors for it."""

from functools import lru_cache

import pytest

from services.predictor.embedding.minilm import MiniLm
from services.predictor.training.core.fit import Embed, Trained, fit
from tests.support.predictor.prompt_log import log


@pytest.fixture(scope="session")
def minilm() -> MiniLm:
    return MiniLm()


@pytest.fixture(scope="session")
def embed(minilm: MiniLm) -> Embed:
    """The same prompt is looked at once."""
    return lru_cache(maxsize=None)(minilm.embed)


@pytest.fixture(scope="session")
def trained(embed: Embed) -> Trained:
    return fit(log(), embed)
