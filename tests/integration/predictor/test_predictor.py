"""Prediction with a prompt that breaks the embedder, and while prompts are forgotten."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from threading import Event

import numpy as np
import pytest

from services.kit.config import PromptCache
from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.cache.vector_index import Vector
from services.predictor.core.estimate import CLASS_MIDDLES, AnswerLimits
from services.predictor.core.prediction_stats import PredictionStats
from services.predictor.runtime.bounded_executor import BoundedExecutor
from services.predictor.runtime.predictor import Components, LengthPredictor
from tests.support.predictor.oracle_model import Oracle
from tests.support.virtual_clock import VirtualClock

SIZE = 4
LIMITS = {"m": AnswerLimits(context_tokens=10_000, default_tokens=5000)}
BREAKS = "breaks"


class Embedder:
    """Breaks on one text; on others waits until `go` is set."""

    def __init__(self) -> None:
        self.go = Event()

    def embed(self, text: str) -> Vector:
        if text == BREAKS:
            raise RuntimeError("no such shape")
        self.go.wait(10)
        return np.ones(SIZE, np.float32)


@pytest.fixture
def embedder() -> Embedder:
    return Embedder()


@pytest.fixture
async def predictor(embedder: Embedder) -> AsyncIterator[LengthPredictor]:
    cache = SemanticCache(["m"], PromptCache(max_entries=10, max_mib=1), SIZE)
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    async with BoundedExecutor(1, 1) as executor:
        means = Components(cache, embedder.embed, Oracle(), executor, PredictionStats(), clock)
        yield LengthPredictor(LIMITS, means, b"secret", 1000)


async def test_a_prompt_that_breaks_what_computes_gets_the_prior(
    predictor: LengthPredictor, embedder: Embedder
) -> None:
    """The next prompt gets its answer; the broken one's length is still learned."""
    broken = await predictor.predict("m", BREAKS.encode())
    assert broken.source == "prior"

    embedder.go.set()
    assert (await predictor.predict("m", b"fine")).source == "model"
    assert predictor.observe_key("m", broken.key, 5)
    assert (await predictor.predict("m", BREAKS.encode())).source == "exact"


async def test_two_answers_of_one_token_do_not_shorten_the_next(
    predictor: LengthPredictor, embedder: Embedder
) -> None:
    """A client may request one token: a known prompt's lengths stay, and a new one is as new."""
    embedder.go.set()
    await predictor.observe("m", b"known", 500)
    prompts = ((b"known", ""), (b"200", "new"))  # all prompts of a tenant look alike here
    for prompt, tenant in prompts * 2:
        found = await predictor.predict("m", prompt, 1, tenant)
        assert found.estimate.expected_tokens == 1
        assert predictor.observe_key("m", found.key, 1, truncated=True)

    known, new = [await predictor.predict("m", prompt, 0, tenant) for prompt, tenant in prompts]
    assert (known.source, known.estimate.expected_tokens) == ("exact", 500)
    assert (new.source, new.estimate.expected_tokens) == ("model", 200)
    assert predictor.components.stats.by_source("m")[0][1].judged == 0


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(0, 5000), (7000, 7000), (100, 100), (2**32 - 1, 10_000)]
)
async def test_a_prediction_is_at_most_what_the_request_the_model_or_its_context_allows(
    predictor: LengthPredictor, embedder: Embedder, max_tokens: int, expected: int
) -> None:
    embedder.go.set()
    found = await predictor.predict("m", b"50000", max_tokens)
    assert found.estimate.high_tokens == found.estimate.expected_tokens == expected


async def test_a_tenants_prompts_reveal_nothing_to_others(
    predictor: LengthPredictor, embedder: Embedder
) -> None:
    """The same prompt gets nothing, nor does a similar one; all look alike here."""
    embedder.go.set()
    await predictor.observe("m", b"700", 300, tenant="one")

    own = await predictor.predict("m", b"700", tenant="one")
    like = await predictor.predict("m", b"900", tenant="one")
    others = [await predictor.predict("m", b"700", tenant=each) for each in ("", "two")]

    assert (own.source, own.estimate.expected_tokens) == ("exact", 300)
    assert like.source == "semantic"
    assert [each.source for each in others] == ["model", "model"]


async def test_a_prompt_forgotten_while_it_is_computed_leaves_nothing(
    predictor: LengthPredictor, embedder: Embedder
) -> None:
    async with asyncio.TaskGroup() as tasks:
        predicted = tasks.create_task(predictor.predict("m", b"fine"))
        await asyncio.sleep(0)
        predictor.forget("m", 0.0)
        embedder.go.set()

    assert predicted.result().key == b""
    assert not predictor.observe_key("m", predictor.key("m", b"fine"), 5)


async def test_more_than_may_wait_get_the_prior_at_once(
    predictor: LengthPredictor, embedder: Embedder
) -> None:
    """One computes, one waits, the third does not; room comes back when they are done."""
    async with asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(predictor.predict("m", b"%d" % i)) for i in range(2)]
        await asyncio.sleep(0)
        assert (await predictor.predict("m", b"late")).source == "prior"
        embedder.go.set()

    assert [each.result().source for each in held] == ["model", "model"]
    await asyncio.sleep(0)
    assert (await predictor.predict("m", b"later")).source == "model"


def test_keys_distinguish_models_and_secrets(embedder: Embedder) -> None:
    """A prompt's key says nothing without the secret."""
    cache = SemanticCache(["m"], PromptCache(max_entries=10, max_mib=1), SIZE)
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    means = Components(
        cache, embedder.embed, Oracle(), BoundedExecutor(1, 1), PredictionStats(), clock
    )
    one, two = (LengthPredictor(LIMITS, means, secret, 1000) for secret in (b"one", b"two"))

    assert one.key("m", b"prompt") == one.key("m", b"prompt")
    assert len({one.key("m", b"prompt"), one.key("n", b"prompt"), two.key("m", b"prompt")}) == 3


async def test_where_like_prompts_mislead_the_proxy_model_answers(embedder: Embedder) -> None:
    """All prompts look alike here, and their lengths are not: the cache is believed at first."""
    embedder.go.set()
    cache = SemanticCache(["m"], PromptCache(max_entries=100, max_mib=1), SIZE)
    sources = []
    async with BoundedExecutor(1, 1) as executor:
        clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
        means = Components(cache, embedder.embed, Oracle(), executor, PredictionStats(), clock)
        predictor = LengthPredictor(LIMITS, means, b"secret", 1000)
        for i in range(20):
            tokens = 5000 + i if i % 2 else 5 + i
            found = await predictor.predict("m", b"%d" % tokens)
            sources.append(found.source)
            predictor.observe_key("m", found.key, tokens)

    assert sources[:2] == ["model", "semantic"]
    assert sources[-5:] == ["model"] * 5


async def test_the_rank_of_an_unknown_model_is_the_middle_of_its_class(
    predictor: LengthPredictor,
) -> None:
    found = await predictor.predict("unknown", b"fine")
    assert found.rank == CLASS_MIDDLES[found.estimate.class_]
