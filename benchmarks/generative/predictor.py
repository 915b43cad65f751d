"""The output-length predictor against TF-IDF with linear models, on prompts neither has seen.

Each data set is split by prompt, several times where it is small; figures are means over splits.
The predictor trains on all served models of a file together (the served model is an input), the
baselines on the served model alone: they have no way to use the others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.harness import Figures, Report, Skipped
from services.predictor.classes import Classes
from services.predictor.proxy import Proxy
from services.predictor.training.baselines import CLASSIFIED, REGRESSED, baselines
from services.predictor.training.export import to_onnx
from services.predictor.training.fit import fit
from services.predictor.training.measures import Measures, pair_order
from services.predictor.training.report import MODE, judge
from services.predictor.training.rows import Row, read, split

DATA = Path(__file__).parents[3] / "shared" / "data" / "prompts"
TEST_SHARE = 0.2
TIMED = 500


@dataclass(frozen=True, slots=True)
class Set:
    """What is learned and foretold.

    Attributes:
        file: Below `DATA`.
        model: Whose lengths are foretold.
        splits: How often.
        ships: Whether the predictor that ships was trained with the file.
    """

    file: str
    model: str
    splits: int
    ships: bool


SETS = {
    "gpteacher": Set("gpteacher.jsonl", "gpt-4", 2, ships=True),
    "sharegpt": Set(
        "sharegpt_first_turn.jsonl", "chatgpt (ShareGPT, version unknown)", 2, ships=False
    ),
    "alpaca_eval_llama-3-8b": Set("alpaca_eval.jsonl", "Meta-Llama-3-8B-Instruct", 5, ships=False),
    "oasst_pythia-12b": Set(
        "oasst_eval.jsonl", "dvruette/oasst-pythia-12b-6000-steps", 3, ships=True
    ),
    "arena_hard_gpt-4": Set("arena_hard.jsonl", "gpt-4-0613", 5, ships=True),
}
QUICK = ("arena_hard_gpt-4",)


def measure(*, quick: bool = False) -> Report:
    """Train and judge on every set; time the predictor that ships.

    Raises:
        Skipped: The data are not there.
    """
    if not DATA.is_dir():
        raise Skipped(f"no prompts in {DATA}")
    names = QUICK if quick else tuple(SETS)
    found = {name: _judged(SETS[name], 1 if quick else SETS[name].splits) for name in names}
    latencies_ms = _latencies_ms(read(DATA / SETS[names[-1]].file)[:TIMED])
    document: dict[str, Any] = {name: _entry(measures) for name, measures in found.items()}
    document["median_ms"] = float(np.median(latencies_ms))
    document["p99_ms"] = float(np.percentile(latencies_ms, 99))
    rows = [
        {"set": name, "predictor": label, **asdict(each)}
        for name, measures in found.items()
        for label, each in measures.items()
    ]
    note = (
        f"Other prompts as test. Latency of the predictor that ships, one core: median "
        f"{document['median_ms']:.2f} ms, p99 {document['p99_ms']:.2f} ms."
    )
    tables = [Figures("Output-length predictor", rows, note)]
    shipped = [
        {"set": name, **_shipped(each)} for name, each in SETS.items() if not (each.ships or quick)
    ]
    if shipped:
        title = "The predictor that ships, on data it was not trained with, learning as it goes"
        tables.append(Figures(title, shipped))
        document["shipped"] = {row["set"]: row for row in shipped}
    return Report(tables, {"predictor": document})


def _judged(each: Set, splits: int) -> dict[str, Measures]:
    """Return the means over splits, by predictor."""
    rows = read(DATA / each.file)
    found = [_split(each, rows, seed) for seed in range(splits)]
    return {label: _mean([one[label] for one in found]) for label in found[0]}


def _split(each: Set, rows: Sequence[Row], seed: int) -> dict[str, Measures]:
    training, testing = split(rows, TEST_SHARE, seed)
    trained = fit(training, seed=seed)
    tested = [row for row in testing if row.model == each.model]
    beside = baselines(training, tested, trained.edges_tokens)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "predictor.onnx"
        file.write_bytes(to_onnx(trained))
        proxy = Proxy(file)
    return judge(proxy, tested, trained.edges_tokens, beside).measures[each.model]


def _mean(measures: Sequence[Measures]) -> Measures:
    values = np.mean([list(asdict(each).values()) for each in measures], axis=0)
    return Measures(*map(float, values))


def _entry(measures: dict[str, Measures]) -> dict[str, float]:
    """Return the figures of the predictor, and the better baseline's for each."""
    rivals = (measures[CLASSIFIED], measures[REGRESSED])
    return {
        **asdict(measures[MODE]),
        "baseline_accuracy": max(each.accuracy for each in rivals),
        "baseline_pair_order": max(each.pair_order for each in rivals),
    }


def _latencies_ms(rows: Sequence[Row]) -> list[float]:
    proxy = Proxy()
    classes = Classes(proxy.known.prior)
    taken = []
    for row in rows:
        began_s = time.perf_counter()
        classes.estimate(proxy.probabilities(row.prompt, classes.edges_tokens))
        taken.append((time.perf_counter() - began_s) * 1e3)
    return taken


def _shipped(each: Set) -> dict[str, float]:
    """Foretell a stream of answers of a model never seen, learning from each."""
    rows = [row for row in read(DATA / each.file) if row.model == each.model]
    order = np.random.default_rng(0).permutation(len(rows))
    proxy = Proxy()
    classes = Classes(proxy.known.prior)
    right, within, expected = [], [], []
    for row in (rows[index] for index in order):
        said = classes.estimate(proxy.probabilities(row.prompt, classes.edges_tokens))
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
