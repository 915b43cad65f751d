"""The semantic cache on real prompts: how often it hits, how right it is, how long it takes.

Prompts arrive one after the other, and each one's true length is observed before the next arrives.
Beside each hit stands what the proxy model said of the same prompt. It is trained on the other half
of the set's distinct prompts, with all answers to them: of those that arrive it has seen none.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from benchmarks._data import data_file
from benchmarks.harness import Figures, Report
from services.kit.config import PromptCache
from services.predictor.adapters.proxy_model import ProxyModel
from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.cache.vector_index import TENANT
from services.predictor.core.source_selector import SourceSelector
from services.predictor.embedding.minilm import SIZE, MiniLm
from services.predictor.runtime.length_models import LengthModels
from services.predictor.training.core.fit import fit
from services.predictor.training.core.rows import Row, read, split
from services.predictor.training.export import to_onnx

SETS: Final = ("oasst_eval", "gpteacher", "sharegpt_first_turn")
THRESHOLDS: Final = (0.7, 0.8, 0.9)
_NOTE: Final = (
    "right: share of right classes among hits; model: the proxy model's share of the same prompts; "
    "chosen: of the one that was right more often before, which the service returns"
)
_ANSWERS, _QUICK, _SEED = 3000, 300, 1
_WEEK_S: Final = 604_800.0

T = TypeVar("T")


def measure(*, quick: bool = False) -> Report:
    """Measure every set at every threshold.

    Raises:
        Skipped: The data are not there.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in SETS:
        embedder = _Remembering(MiniLm())
        training, testing = split(read(data_file(f"prompts/{name}.jsonl")), 0.5, seed=_SEED)
        random.Random(_SEED).shuffle(testing)
        sent = testing[: _QUICK if quick else _ANSWERS]
        proxy = _trained(training, embedder)
        found[name] = {f"{each:g}": _Day(sent, each, embedder, proxy).run() for each in THRESHOLDS}
    rows = [
        {"set": name, "threshold": threshold, **figures}
        for name, by_threshold in found.items()
        for threshold, figures in by_threshold.items()
    ]
    return Report([Figures("Semantic cache", rows, _NOTE)], {"cache": found})


def _trained(rows: Sequence[Row], embedder: _Remembering) -> ProxyModel:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "predictor.onnx"
        file.write_bytes(to_onnx(fit(rows, embedder.embed)))
        return ProxyModel(file)


class _Remembering:
    """An embedder that need not look at a prompt twice; times what it computes."""

    def __init__(self, embedder: MiniLm) -> None:
        self._embedder = embedder
        self._vectors: dict[str, Any] = {}
        self.took_s: list[float] = []

    def embed(self, prompt: str) -> Any:
        if prompt not in self._vectors:
            self._vectors[prompt] = _timed(self.took_s, lambda: self._embedder.embed(prompt))
        return self._vectors[prompt]


class _Day:
    """One run over a set's prompts."""

    def __init__(
        self, rows: Sequence[Row], threshold: float, embedder: _Remembering, proxy: ProxyModel
    ) -> None:
        models = sorted({each.model for each in rows})
        self._rows, self._embedder = rows, embedder
        settings = PromptCache(max_mib=1024, max_unused_s=_WEEK_S, similarity=threshold)
        self._cache = SemanticCache(models, settings, SIZE)
        self._knowledge = LengthModels(proxy, models)
        self._selectors: dict[str, SourceSelector] = defaultdict(SourceSelector)
        self._right: dict[str, list[bool]] = defaultdict(list)
        self._exact_s: list[float] = []
        self._search_s: list[float] = []

    def run(self) -> dict[str, float | None]:
        """Return the figures."""
        for now_s, each in enumerate(self._rows):
            self._serve(each, float(now_s))
        return {
            "exact_rate": len(self._right["exact"]) / len(self._rows),
            "exact_right": _share(self._right["exact"]),
            "exact_model": _share(self._right["model, exact"]),
            "semantic_rate": len(self._right["semantic"]) / len(self._rows),
            "semantic_right": _share(self._right["semantic"]),
            "semantic_model": _share(self._right["model, semantic"]),
            "semantic_chosen": _share(self._right["chosen"]),
            "exact_us": 1e6 * median(self._exact_s),
            "search_ms": 1e3 * median(self._search_s),
            "embed_ms": 1e3 * median(self._embedder.took_s),
        }

    def _serve(self, row: Row, now_s: float) -> None:
        model, prompt, tokens = row.model, row.prompt, row.tokens
        cache, knowledge = self._cache, self._knowledge
        key = blake2b(prompt.encode(errors="replace"), digest_size=TENANT).digest()
        vector, kind = self._embedder.embed(prompt), "exact"
        hit = _timed(self._exact_s, lambda: cache.of[model].exact(key, now_s))
        if hit is None:
            kind, hit = (
                "semantic",
                _timed(self._search_s, lambda: cache.of[model].near(vector, now_s)),
            )
        said, classes = knowledge.predict(model, prompt, vector), knowledge.classes(model)
        true_class = classes.class_of(tokens)
        if hit is not None:
            by_cache = classes.class_of(hit.lengths.mean_tokens)
            self._right[kind].append(by_cache == true_class)
            self._right[f"model, {kind}"].append(said.class_ == true_class)
            if kind == "semantic":
                cache.of[model].judge(hit.key, right=not hit.lengths.is_outlier(tokens))
                selector = self._selectors[model]
                chosen = by_cache if selector.prefers_cache else said.class_
                self._right["chosen"].append(chosen == true_class)
                self._selectors[model] = selector.updated(
                    cache_class=by_cache, model_class=said.class_, true_class=true_class
                )
        cache.of[model].learn(key, tokens, now_s, vector)
        classes.observe(tokens, said.probabilities)


def _timed(took_s: list[float], work: Callable[[], T]) -> T:
    began_s = time.perf_counter()
    done = work()
    took_s.append(time.perf_counter() - began_s)
    return done


def _share(right: Sequence[bool]) -> float | None:
    return mean(right) if right else None
