"""Foretells lengths, from this very prompt, a like one or the proxy model, and learns from truth.

Everything here runs on the event loop, except what computes: embedding, search, proxy model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Final, Protocol

from services.kit.clock import Clock
from services.kit.telemetry import logs
from services.predictor.core.cache.answer_lengths import Lengths
from services.predictor.core.cache.semantic_cache import Hit, SemanticCache
from services.predictor.core.cache.vector_index import Vector
from services.predictor.core.estimate import CLASS_MIDDLES, Estimate
from services.predictor.core.length_model import Knowledge
from services.predictor.core.pending import Expectation, Pending
from services.predictor.core.prediction import Foretold, Source
from services.predictor.core.prediction_stats import Tally
from services.predictor.core.source_selector import Rivals
from services.predictor.runtime.bounded_executor import Crew

_log = logs.get("foreteller")

KEY_BYTES: Final = 16
_PENDING: Final = 4096


class Embedder(Protocol):
    """Makes vectors of prompts."""

    def embed(self, text: str) -> Vector:
        """Return a vector of length 1; texts of like meaning have a cosine near 1. Blocks: ms."""
        ...


@dataclass(frozen=True, slots=True)
class Means:
    """What a foreteller works with.

    Attributes:
        cache: Remembers prompts.
        embedder: Makes vectors of them.
        knowledge: Foretells what the cache cannot.
        crew: Computes.
        tally: Counts.
        clock: Tells the time.
    """

    cache: SemanticCache
    embedder: Embedder
    knowledge: Knowledge
    crew: Crew
    tally: Tally
    clock: Clock


class Foreteller:
    """Foretells the length of answers of some models.

    Args:
        models: Whose; of other models nothing is kept, and the prior answers.
        means: What it works with.
        secret: Keys the hashes of prompts.
        max_prompt_bytes: Larger prompts are answered from the prior.
    """

    def __init__(
        self, models: Collection[str], means: Means, secret: bytes, max_prompt_bytes: int
    ) -> None:
        self.models = tuple(sorted(models))
        self._means = means
        self._secret = secret
        self._max_prompt_bytes = max_prompt_bytes
        self._pending = Pending(_PENDING)
        self._rivals = dict.fromkeys(self.models, Rivals())
        self._era = 0  # of what was not forgotten

    async def foretell(self, model: str, prompt: bytes) -> Foretold:
        """Return how long the answer to a prompt is going to be; at once where it would wait."""
        began_s = self._means.clock.monotonic()
        if model not in self.models:
            return _ranked(self._means.knowledge.prior(model), "prior", b"")
        if len(prompt) > self._max_prompt_bytes:
            found = _ranked(self._means.knowledge.prior(model), "prior", b"")
        else:
            found = await self._found(model, prompt, self.key(model, prompt))
        self._means.tally.foretold(model, found.source, self._means.clock.monotonic() - began_s)
        rank = self._means.knowledge.rank(model, found.estimate.expected_tokens)
        return found if rank is None else replace(found, rank=rank)

    async def _found(self, model: str, prompt: bytes, key: bytes) -> Foretold:
        means, now_s, era = self._means, self._now_s(), self._era
        hit = means.cache.exact(model, key, now_s)
        if hit is not None:
            found = Expectation(self._told(model, hit), "exact", now_s)
        elif means.crew.full:
            found = Expectation(means.knowledge.prior(model), "prior", now_s)
        else:
            found = await self._tried(model, prompt, now_s)
        if era != self._era:  # forgotten while it was computed
            return _ranked(found.estimate, found.source, b"")
        self._pending.put(model, key, found)
        return _ranked(found.estimate, found.source, key)

    async def _tried(self, model: str, prompt: bytes, now_s: float) -> Expectation:
        try:
            work = partial(self._computed, model, prompt, now_s)
            vector, said, hit = await self._means.crew.run(work)
        except Exception:  # noqa: BLE001 - the border: what one prompt breaks, others do not notice
            _log.exception("a prompt could not be foretold", model=model, bytes=len(prompt))
            return Expectation(self._means.knowledge.prior(model), "prior", now_s)
        if hit is None:
            source: Source = "prior" if said.source == "prior" else "model"
            return Expectation(said, source, now_s, vector, None, said)
        told = self._told(model, hit)
        if self._rivals[model].cache_leads:
            return Expectation(told, "semantic", now_s, vector, told, said, hit.key)
        return Expectation(said, "model", now_s, vector, told, said, hit.key)

    def _computed(
        self, model: str, prompt: bytes, now_s: float
    ) -> tuple[Vector, Estimate, Hit | None]:
        """Return a prompt's vector, and what both tell: runs in a thread."""
        text = prompt.decode("utf-8", "replace")
        vector = self._means.embedder.embed(text)
        said = self._means.knowledge.predict(model, text, vector)
        return vector, said, self._means.cache.near(model, vector, now_s)

    def _told(self, model: str, hit: Hit) -> Estimate:
        mean, (low, high) = hit.lengths.mean_tokens, hit.lengths.range_tokens()
        return Estimate(mean, self._means.knowledge.class_of(model, mean), low, high, "cache")

    async def observe(self, model: str, prompt: bytes, tokens: int) -> bool:
        """Learn an answer's true length; see `observe_key`."""
        if model not in self.models or len(prompt) > self._max_prompt_bytes:
            return False
        key = self.key(model, prompt)
        if not self._knows(model, key) and not self._means.crew.full:
            era, found = self._era, await self._tried(model, prompt, self._now_s())
            if era != self._era:
                return False
            self._means.cache.learn(model, key, tokens, self._now_s(), found.vector)
            self._counted(model, found.said, tokens)
            return True
        return self.observe_key(model, key, tokens, known=True)

    def observe_key(self, model: str, key: bytes, tokens: int, *, known: bool = False) -> bool:
        """Learn an answer's true length.

        Args:
            model: Which model answered.
            key: Stands for the prompt, as `Foretold` gave it.
            tokens: The answer's length, tokens.
            known: Learn it even where nobody asked about the prompt.

        Returns:
            Whether anything was learned: the prompt is known, and so is the model.
        """
        if model not in self.models or not (known or self._knows(model, key)):
            return False
        before = self._pending.get(model, key)
        if before is not None:
            self._judge(model, before, tokens)
        vector = None if before is None else before.vector
        self._means.cache.learn(model, key, tokens, self._now_s(), vector)
        self._counted(model, None if before is None else before.said, tokens)
        return True

    def forget(self, model: str | None, unused_for_s: float) -> int:
        """Delete what is kept of prompts from memory; return how many those were.

        Args:
            model: Of this model; None: of all.
            unused_for_s: Only prompts not used for so long, s; 0: all of them.
        """
        if model is not None and model not in self.models:
            return 0
        since_s = self._now_s() - unused_for_s if unused_for_s else float("inf")
        self._era += 1
        waiting = self._pending.forget(model, since_s)
        unanswered = sum(not self._means.cache.holds(*each) for each in waiting)
        return unanswered + self._means.cache.forget(model, since_s)

    def key(self, model: str, prompt: bytes) -> bytes:
        """Return what stands for a prompt; without the secret nobody can tell which prompt."""
        digest = blake2b(prompt, digest_size=KEY_BYTES, key=self._secret)
        digest.update(b"\0" + model.encode())
        return digest.digest()

    def _knows(self, model: str, key: bytes) -> bool:
        return self._pending.get(model, key) is not None or self._means.cache.holds(model, key)

    def _judge(self, model: str, before: Expectation, tokens: int) -> None:
        true_class = self._means.knowledge.class_of(model, tokens)
        right = before.estimate.class_ == true_class
        self._means.tally.judged(model, before.source, right=right)
        if before.told is not None and before.said is not None:
            far = Lengths.of(before.told.expected_tokens).far(tokens)
            self._means.cache.judge(model, before.teller, right=not far)
            self._rivals[model] = self._rivals[model].then(
                cache_class=before.told.class_,
                model_class=before.said.class_,
                true_class=true_class,
            )

    def _counted(self, model: str, said: Estimate | None, tokens: int) -> None:
        self._means.knowledge.observe(model, said, tokens)
        self._means.tally.observed(model)

    def _now_s(self) -> float:
        return self._means.clock.now().timestamp()


def _ranked(estimate: Estimate, source: Source, key: bytes) -> Foretold:
    """Return a prediction whose rank is known from its class alone."""
    return Foretold(estimate, source, key, CLASS_MIDDLES[estimate.class_])
