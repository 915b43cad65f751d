"""Predicts lengths from this very prompt, a similar one or the proxy model, and learns true ones.

Everything here runs on the event loop, except embedding, search and the proxy model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from math import inf
from typing import Final

from services.kit.clock import Clock
from services.kit.telemetry import logs
from services.predictor.core.cache.answer_lengths import AnswerLengths
from services.predictor.core.cache.lru_index import Hit
from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.cache.vector_index import TENANT, Vector
from services.predictor.core.estimate import CLASS_MIDDLES, AnswerLimits, Estimate
from services.predictor.core.length_classes import LengthClasses
from services.predictor.core.prediction import (
    PendingPrediction,
    PendingPredictions,
    Prediction,
    Source,
)
from services.predictor.core.prediction_stats import PredictionStats
from services.predictor.core.source_selector import SourceSelector
from services.predictor.runtime.bounded_executor import BoundedExecutor
from services.predictor.runtime.length_models import LengthModels

_log = logs.get("predictor")

_TENANT_BYTES: Final = 8
_MAX_PENDING: Final = 4096


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of a predictor.

    Attributes:
        cache: Lengths by prompt.
        embed: Returns a prompt's vector of length 1; prompts of like meaning have a cosine near 1.
            Blocks: ms.
        lengths: Length models, for prompts that the cache does not know.
        executor: Runs what blocks.
        stats: Counts predictions.
        clock: Time.
    """

    cache: SemanticCache
    embed: Callable[[str], Vector]
    lengths: LengthModels
    executor: BoundedExecutor
    stats: PredictionStats
    clock: Clock


class LengthPredictor:
    """Predicts the length of some models' answers.

    Args:
        limits: Of the models' answers, by name; other models get the prior, and nothing of them is
            kept.
        components: Its parts.
        secret: Key of the prompts' hashes.
        max_prompt_bytes: Size above which prompts get the prior, bytes.
    """

    def __init__(
        self,
        limits: Mapping[str, AnswerLimits],
        components: Components,
        secret: bytes,
        max_prompt_bytes: int,
    ) -> None:
        self.limits = limits
        self.models = tuple(sorted(limits))
        self.components = components
        self._secret = secret
        self._max_prompt_bytes = max_prompt_bytes
        self._pending = PendingPredictions(_MAX_PENDING)
        self._selectors = dict.fromkeys(self.models, SourceSelector())
        self._forgotten = 0  # number of calls of `forget`

    async def predict(
        self, model: str, prompt: bytes, max_tokens: int = 0, tenant: str = ""
    ) -> Prediction:
        """Return the expected length of the answer; the prior where the request would wait.

        Args:
            model: The model that will answer.
            prompt: The prompt.
            max_tokens: Length at which the answer will be cut off, tokens; 0: the model's default.
            tenant: Tenant of the prompt.
        """
        lengths, clock = self._classes(model), self.components.clock
        began_s = clock.monotonic()
        if model not in self.models:
            return _prediction(lengths.estimate(max_tokens=max_tokens or inf), "prior", b"")
        if len(prompt) > self._max_prompt_bytes:
            found = _prediction(lengths.estimate(), "prior", b"")
        else:
            found = await self._predict(model, prompt, self.key(model, prompt, tenant))
        limit = self.limits[model].of_request(max_tokens)
        if found.estimate.high_tokens > limit:
            estimate = lengths.shortened(found.estimate, limit)
            found = _prediction(estimate, found.source, found.key)
        self.components.stats.count_prediction(model, found.source, clock.monotonic() - began_s)
        rank = lengths.rank(found.estimate.expected_tokens)
        return found if rank is None else replace(found, rank=rank)

    async def _predict(self, model: str, prompt: bytes, key: bytes) -> Prediction:
        parts, now_s, forgotten = self.components, self._now_s(), self._forgotten
        hit = parts.cache.of[model].exact(key, now_s)
        if hit is not None:
            found = PendingPrediction(self._estimate(model, hit), "exact", now_s)
        elif parts.executor.full:
            found = PendingPrediction(self._classes(model).estimate(), "prior", now_s)
        else:
            found = await self._compute(model, prompt, key, now_s)
        if forgotten != self._forgotten:  # the prompt may have been forgotten meanwhile
            return _prediction(found.estimate, found.source, b"")
        self._pending.put(model, key, found)
        return _prediction(found.estimate, found.source, key)

    async def _compute(
        self, model: str, prompt: bytes, key: bytes, now_s: float
    ) -> PendingPrediction:
        try:
            work = partial(self._compute_blocking, model, prompt, key[TENANT:], now_s)
            vector, from_model, hit = await self.components.executor.run(work)
        except Exception:  # noqa: BLE001 - the border: a prompt that fails must not harm others
            _log.exception("a prediction failed", model=model, bytes=len(prompt))
            return PendingPrediction(self._classes(model).estimate(), "prior", now_s)
        if hit is None:
            source: Source = "prior" if from_model.source == "prior" else "model"
            return PendingPrediction(from_model, source, now_s, vector, None, from_model)
        from_cache = self._estimate(model, hit)
        chosen, source = from_model, "model"
        if self._selectors[model].prefers_cache:
            chosen, source = from_cache, "semantic"
        return PendingPrediction(chosen, source, now_s, vector, from_cache, from_model, hit.key)

    def _compute_blocking(
        self, model: str, prompt: bytes, tenant: bytes, now_s: float
    ) -> tuple[Vector, Estimate, Hit | None]:
        """Return a prompt's vector, the proxy model's estimate and a similar prompt's entry."""
        text = prompt.decode("utf-8", "replace")
        vector = self.components.embed(text)
        from_model = self.components.lengths.predict(model, text, vector)
        return vector, from_model, self.components.cache.of[model].near(vector, now_s, tenant)

    def _estimate(self, model: str, hit: Hit) -> Estimate:
        mean, (low, high) = hit.lengths.mean_tokens, hit.lengths.range_tokens()
        return Estimate(mean, self._classes(model).class_of(mean), low, high, "cache")

    async def observe(
        self, model: str, prompt: bytes, tokens: int, *, truncated: bool = False, tenant: str = ""
    ) -> bool:
        """Learn an answer's true length; see `observe_key`."""
        if model not in self.models or len(prompt) > self._max_prompt_bytes:
            return False
        key = self.key(model, prompt, tenant)
        if not self._knows(model, key) and not self.components.executor.full:
            forgotten, found = (
                self._forgotten,
                await self._compute(model, prompt, key, self._now_s()),
            )
            if forgotten != self._forgotten:
                return False
            self._learn(model, key, tokens, found, truncated=truncated)
            return True
        return self.observe_key(model, key, tokens, truncated=truncated, known=True)

    def observe_key(
        self,
        model: str,
        key: bytes,
        tokens: int,
        *,
        truncated: bool = False,
        known: bool = False,
    ) -> bool:
        """Learn an answer's true length.

        Args:
            model: The model that answered.
            key: Key of the prompt, as in its `Prediction`.
            tokens: Length, tokens.
            truncated: Whether the answer was cut off there: its true length is not known, only
                that it is no shorter.
            known: Learn the length even if nothing was predicted for the prompt.

        Returns:
            Whether anything was learned: model and prompt are known.
        """
        if model not in self.models or not (known or self._knows(model, key)):
            return False
        before = self._pending.get(model, key)
        if before is not None and not truncated:
            self._judge(model, before, tokens)
        self._learn(model, key, tokens, before, truncated=truncated)
        return True

    def forget(self, model: str | None, unused_for_s: float) -> int:
        """Delete prompts from memory; return how many.

        Args:
            model: Model of the prompts; None: all models.
            unused_for_s: Only prompts not used for so long, s; 0: all of them.
        """
        if model is not None and model not in self.models:
            return 0
        since_s = self._now_s() - unused_for_s if unused_for_s else float("inf")
        self._forgotten += 1
        pending = self._pending.forget(model, since_s)
        cache = self.components.cache
        new = sum(key not in cache.of[owner] for owner, key in pending)
        return new + cache.forget(model, since_s)

    def key(self, model: str, prompt: bytes, tenant: str = "") -> bytes:
        """Return a prompt's keyed hash, then its tenant's: without the secret they say nothing."""
        digest = blake2b(prompt, digest_size=TENANT, key=self._secret)
        digest.update(b"\0" + model.encode())
        if not tenant:
            return digest.digest()
        owner = blake2b(tenant.encode(), digest_size=_TENANT_BYTES, key=self._secret).digest()
        digest.update(b"\0" + owner)
        return digest.digest() + owner

    def _learn(
        self,
        model: str,
        key: bytes,
        tokens: int,
        found: PendingPrediction | None,
        *,
        truncated: bool,
    ) -> None:
        vector = found.vector if found else None
        said = found.from_model.probabilities if found and found.from_model else ()
        now_s = self._now_s()
        self.components.cache.of[model].learn(key, tokens, now_s, vector, truncated=truncated)
        self._classes(model).observe(tokens, said, truncated=truncated)
        self.components.stats.count_observation(model)

    def _classes(self, model: str) -> LengthClasses:
        return self.components.lengths.classes(model)

    def _knows(self, model: str, key: bytes) -> bool:
        pending = self._pending.get(model, key)
        return pending is not None or key in self.components.cache.of[model]

    def _judge(self, model: str, before: PendingPrediction, tokens: int) -> None:
        true_class = self._classes(model).class_of(tokens)
        right = before.estimate.class_ == true_class
        self.components.stats.count_judgement(model, before.source, right=right)
        if before.from_cache is not None and before.from_model is not None:
            outlier = AnswerLengths.of(before.from_cache.expected_tokens).is_outlier(tokens)
            self.components.cache.of[model].judge(before.neighbour_key, right=not outlier)
            self._selectors[model] = self._selectors[model].updated(
                cache_class=before.from_cache.class_,
                model_class=before.from_model.class_,
                true_class=true_class,
            )

    def _now_s(self) -> float:
        return self.components.clock.now().timestamp()


def _prediction(estimate: Estimate, source: Source, key: bytes) -> Prediction:
    """Return a prediction ranked by its class, until the model's own ranks are known."""
    return Prediction(estimate, source, key, CLASS_MIDDLES[estimate.class_])
