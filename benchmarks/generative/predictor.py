"""The output-length predictor against TF-IDF with linear models, on prompts neither has seen.

Each data set is split by prompt, several times where it is small; figures are means over splits.
The predictor trains on all served models of a file together (the served model is an input), the
baselines on the served model alone: they have no way to use the others.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks._data import data_file
from benchmarks.generative.objectives import OURS, objectives
from benchmarks.generative.repeats import ceiling
from benchmarks.harness import Figures, Report
from services.predictor.adapters.proxy_model import ProxyModel
from services.predictor.core.length_classes import LengthClasses
from services.predictor.embedding.minilm import MiniLm
from services.predictor.training.baselines import CLASSIFIED, REGRESSED, baselines
from services.predictor.training.core.fit import Embed, fit_body
from services.predictor.training.core.metrics import Measures, pair_order
from services.predictor.training.core.rows import Row, read, split

Figure = Mapping[str, Any]

TEST_SHARE = 0.2
CEILING = "knowing the other answers"
TIMED, PASSES = 300, 15


@dataclass(frozen=True, slots=True)
class Set:
    """A data set, and the model whose lengths are learned and predicted.

    Attributes:
        file: Of the data set prompts.
        model: The model whose lengths are predicted.
        splits: Number of random splits.
        ships: The predictor that ships was trained with the file.
        repeats: The model answered each prompt several times.
    """

    file: str
    model: str
    splits: int
    ships: bool
    repeats: bool = False


SETS = {
    "gpteacher": Set("gpteacher.jsonl", "gpt-4", 2, ships=True),
    "sharegpt": Set(
        "sharegpt_first_turn.jsonl", "chatgpt (ShareGPT, version unknown)", 2, ships=False
    ),
    "alpaca_eval_llama-3-8b": Set("alpaca_eval.jsonl", "Meta-Llama-3-8B-Instruct", 5, ships=False),
    "oasst_pythia-12b": Set(
        "oasst_eval.jsonl", "dvruette/oasst-pythia-12b-6000-steps", 3, ships=True, repeats=True
    ),
    "arena_hard_gpt-4": Set("arena_hard.jsonl", "gpt-4-0613", 5, ships=True),
}
QUICK = ("arena_hard_gpt-4",)


def measure(*, quick: bool = False) -> Report:
    """Train and judge on every set; time the predictor that ships.

    Raises:
        Skipped: The data are not there.
    """
    embed = lru_cache(maxsize=None)(MiniLm().embed)
    names = QUICK if quick else tuple(SETS)
    found = {
        name: _rows(name, _judged(SETS[name], 1 if quick else SETS[name].splits, embed))
        for name in names
    }
    document: dict[str, Any] = {
        name: _entry(rows) | {"held_out": _held_out(1 if quick else SETS[name].splits)}
        for name, rows in found.items()
    }
    document |= _latencies(read(data_file(f"prompts/{SETS[names[-1]].file}"))[:TIMED])
    note = (
        "Other prompts as test; accuracy_spread: standard deviation over splits. Latency of the "
        f"predictor that ships, one core: median {document['median_ms']:.2f} ms, "
        f"p99 {document['p99_ms']:.2f} ms; undisturbed {document['undisturbed_median_ms']:.2f} ms, "
        f"of it the vector {document['undisturbed_vector_median_ms']:.2f} ms."
    )
    everything = [row for rows in found.values() for row in rows]
    tables = [Figures("Output-length predictor", everything, note)]
    shipped = [
        {"set": name, **_shipped(each, embed)}
        for name, each in SETS.items()
        if not (each.ships or quick)
    ]
    if shipped:
        title = "The predictor that ships, on data it was not trained with, learning as it goes"
        tables.append(Figures(title, shipped))
        document["shipped"] = {row["set"]: row for row in shipped}
    return Report(tables, {"predictor": document})


def _judged(each: Set, splits: int, embed: Embed) -> list[dict[str, Measures]]:
    """Return how good each predictor is, split by split."""
    rows = read(data_file(f"prompts/{each.file}"))
    found = [_split(each, rows, seed, embed) for seed in range(splits)]
    if each.repeats:
        known = ceiling(row for row in rows if row.model == each.model)
        found = [{**judged, CEILING: known} for judged in found]
    return found


def _split(each: Set, rows: Sequence[Row], seed: int, embed: Embed) -> dict[str, Measures]:
    training, testing = split(rows, TEST_SHARE, seed)
    tested = [row for row in testing if row.model == each.model]
    with threadpool_limits(limits=1):
        body, inputs = fit_body(training, embed, seed=seed)
        simple = baselines(training, tested, body.edges_tokens)[each.model]
        return simple | objectives(body, inputs, training, tested, embed)


def _rows(name: str, splits: Sequence[dict[str, Measures]]) -> list[dict[str, Any]]:
    """Return each predictor's means over splits, and how far its accuracy varies with them."""
    found = []
    for label in splits[0]:
        each = [list(asdict(one[label]).values()) for one in splits]
        means = asdict(Measures(*np.mean(each, axis=0).tolist()))
        spread = float(np.std([one[label].accuracy for one in splits]))
        found.append({"set": name, "predictor": label, **means, "accuracy_spread": spread})
    return found


def _entry(rows: Sequence[Figure]) -> dict[str, Any]:
    """Return the figures of the predictor, and the better baseline's for each."""
    by_name = {row["predictor"]: row for row in rows}
    ours = by_name[OURS]
    baseline_rows = [by_name[CLASSIFIED], by_name[REGRESSED]]
    return {
        **{key: value for key, value in ours.items() if isinstance(value, float)},
        "baseline_accuracy": max(each["accuracy"] for each in baseline_rows),
        "baseline_pair_order": max(each["pair_order"] for each in baseline_rows),
    }


def _held_out(splits: int) -> str:
    """Return how tested prompts were kept apart."""
    return (
        f"{TEST_SHARE:.0%} of the distinct prompts, drawn {splits} times (seeds 0..{splits - 1});"
        " a prompt and all answers to it are on one side"
    )


def _latencies(rows: Sequence[Row]) -> dict[str, float]:
    """Return what a prompt takes from text to estimate, and of it what its vector takes.

    Undisturbed: each prompt's best of `PASSES`; other programs delay some of the time only.
    """
    proxy, embedder = ProxyModel(), MiniLm()
    classes = LengthClasses(proxy.known.prior)

    def took_ms(prompt: str) -> tuple[float, float]:
        began_s = time.perf_counter()
        vector = embedder.embed(prompt)
        embedded_s = time.perf_counter()
        classes.estimate(proxy.probabilities(prompt, vector, classes.edges_tokens))
        return 1e3 * (time.perf_counter() - began_s), 1e3 * (embedded_s - began_s)

    passes_ms = np.array([[took_ms(row.prompt) for row in rows] for _ in range(PASSES)])
    best_ms = np.median(passes_ms.min(axis=0), axis=0)
    all_ms = passes_ms[:, :, 0]
    return {
        "median_ms": float(np.median(all_ms)),
        "p99_ms": float(np.percentile(all_ms, 99)),
        "undisturbed_median_ms": float(best_ms[0]),
        "undisturbed_vector_median_ms": float(best_ms[1]),
    }


def _shipped(each: Set, embed: Embed) -> dict[str, float]:
    """Predict a stream of answers of a model never seen, learning from each."""
    rows = [row for row in read(data_file(f"prompts/{each.file}")) if row.model == each.model]
    order = np.random.default_rng(0).permutation(len(rows))
    proxy = ProxyModel()
    classes = LengthClasses(proxy.known.prior)
    right, within, expected = [], [], []
    for row in (rows[index] for index in order):
        likely = proxy.probabilities(row.prompt, embed(row.prompt), classes.edges_tokens)
        said = classes.estimate(likely)
        right.append(said.class_ == classes.class_of(row.tokens))
        within.append(said.low_tokens <= row.tokens <= said.high_tokens)
        expected.append(said.expected_tokens)
        classes.observe(row.tokens, said.probabilities)
    tokens = np.array([rows[index].tokens for index in order], np.float64)
    return {
        "answers": len(rows),
        "accuracy": float(np.mean(right)),
        "pair_order": pair_order(tokens, np.array(expected)),
        "within_interval": float(np.mean(within)),
    }
