"""Answers of real models: how long each was, and its predicted length.

Lengths come from the data sets requests, prompts and proxy-models.
"""

import csv
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from benchmarks._data import DATA, data_file
from benchmarks.generative.repeats import by_the_others
from benchmarks.generative.serving import Classes, Seconds
from services.predictor.core.estimate import CLASS_MIDDLES, CLASS_RANKS
from services.predictor.embedding.minilm import MiniLm
from services.predictor.runtime.length_models import LengthModels
from services.predictor.training.core.fit import fit
from services.predictor.training.core.metrics import confusion
from services.predictor.training.core.rows import Row, read, split
from services.predictor.training.export import to_onnx
from services.router.core.queue.boost import DECILES, decile_at

BEFORE_S, TOKEN_S = 0.1, 0.02
"""Length of an answer, s: a fixed part, and a part per token."""

TEST_SHARE = 0.5
"""Of the prompts of a set that our predictor is trained on: those that it is judged by."""

_EDGES_TOKENS = (42, 141, 294, 503)  # of the artifact's classes
_ARTIFACT = "proxy-models/vicuna13b_length_predictions.csv"


@dataclass(frozen=True, slots=True)
class _Set:
    """Prompts with lengths of answers.

    Attributes:
        name: Name of the models that answered.
        file: Below `DATA`.
        model: That of their models which is looked at.
    """

    name: str
    file: str
    model: str

    @property
    def path(self) -> Path:
        return DATA / "prompts" / self.file


_RECORDED = {
    "Azure 2023": ("azure_llm_2023_conv.csv", "arrival_s", "output_tokens"),
    "Mooncake": ("mooncake_conversation.jsonl", "timestamp", "output_length"),
}
"""Files of arrivals with lengths, and the columns of both, by name."""

_SAMPLED = _Set("Pythia-12B (OASST)", "oasst_eval.jsonl", "dvruette/oasst-pythia-12b-6000-steps")
_SETS = (
    _Set("GPT-4 (GPTeacher)", "gpteacher.jsonl", "gpt-4"),
    _Set("ChatGPT (ShareGPT)", "sharegpt_first_turn.jsonl", "chatgpt (ShareGPT, version unknown)"),
    _SAMPLED,
)


@dataclass(frozen=True, slots=True)
class Trace:
    """Answers of one model.

    Attributes:
        answers: Name of the model.
        predicted_by: Predictor of their lengths.
        services_s: Service time of each answer, s, shape (answers,).
        predicted: The predicted class, 0..9, shape (answers,).
        true: The class it is of, 0..4, shape (answers,).
        gaps_s: Times between recorded arrivals, shape (gaps,); empty: none are recorded.
    """

    answers: str
    predicted_by: str
    services_s: Seconds
    predicted: Classes
    true: Classes
    gaps_s: Seconds = field(default_factory=lambda: np.empty(0))


def artifact() -> Trace:
    """Return vicuna-13b on LMSYS-Chat-1M, predicted by mu-Serve's own proxy model (BERT-base).

    Raises:
        Skipped: The file is not there.
    """
    with data_file(_ARTIFACT).open(newline="") as lines:
        rows = [
            (int(row["output_tokens"]), int(row["pred_5class"])) for row in csv.DictReader(lines)
        ]
    tokens, predicted = np.array(rows).T
    return _trace(("vicuna-13b (LMSYS)", "mu-Serve's predictor"), tokens, predicted, _EDGES_TOKENS)


def ours() -> list[Trace]:
    """Return prompts that our predictor has not seen, with its predictions.

    It is trained on half of each set's prompts, as from a user's own logs, and learns on as it does
    live: each answer's length after its prediction.
    """
    return [_predicted(each, read(each.path)) for each in _SETS if each.path.is_file()]


def imitated(trace: Trace, other: Trace) -> Trace:
    """Return a trace's answers, predicted with another one's errors.

    Of each true class as many are taken for each class as `other` takes for it: what a predictor is
    worth on answers whose prompts it cannot predict.
    """
    counts = confusion(other.true, other.predicted)
    shares = np.cumsum(counts / counts.sum(axis=1, keepdims=True), axis=1)
    drawn = np.random.default_rng(0).random((len(trace.true), 1))
    predicted = (drawn >= shares[trace.true, :-1]).sum(axis=1)
    return replace(trace, predicted_by=f"as by {other.predicted_by}", predicted=predicted)


def recorded(other: Trace) -> list[Trace]:
    """Return production's answers with their arrivals, predicted with another trace's errors.

    Nothing of the rule for boosts was chosen while looking at one trace of these alone: the
    decision page says how.
    """
    found = []
    for name, (file, arrived, answered) in _RECORDED.items():
        path = DATA / "requests" / file
        if path.is_file():
            table = pl.read_csv(path) if path.suffix == ".csv" else pl.read_ndjson(path)
            arrivals_s = table[arrived].to_numpy().astype(np.float64)
            tokens = table[answered].to_numpy()
            edges = _edges(tokens)
            trace = _trace((name, ""), tokens, np.zeros_like(tokens), edges)
            found.append(replace(imitated(trace, other), gaps_s=np.diff(arrivals_s)))
    return found


def perfect(trace: Trace) -> Trace:
    """Return a trace's answers, each one's class predicted without an error."""
    return replace(trace, predicted_by="true classes", predicted=trace.true)


def sampled() -> list[Trace]:
    """Return answers of a model that answered each prompt several times, predicted from the others.

    Of those that `ours` has. The others' mean is about as much as a prompt's text can reveal.
    """
    if not _SAMPLED.path.is_file():
        return []
    rows, means = by_the_others(_halves(_SAMPLED, read(_SAMPLED.path))[1])
    tokens = np.array([row.tokens for row in rows])
    predicted = np.searchsorted(np.quantile(means, np.arange(1, DECILES) / DECILES), means)
    return [
        _trace((_SAMPLED.name, "other answers to the prompt"), tokens, predicted, _edges(tokens))
    ]


def _predicted(each: _Set, rows: list[Row]) -> Trace:
    training, testing = _halves(each, rows)
    embed = MiniLm().embed
    with TemporaryDirectory() as folder:
        file = Path(folder) / "predictor.onnx"
        file.write_bytes(to_onnx(fit(training, embed)))
        histories = LengthModels.of(file, {row.model for row in rows})
    predicted = []
    for row in testing:
        estimate = histories.predict(row.model, row.prompt, embed(row.prompt))
        rank = histories.classes(row.model).rank(estimate.expected_tokens)
        predicted.append(decile_at(CLASS_MIDDLES[estimate.class_] if rank is None else rank))
        histories.classes(row.model).observe(row.tokens, estimate.probabilities)
    tokens = np.array([row.tokens for row in testing])
    return _trace((each.name, "our predictor"), tokens, np.array(predicted), _edges(tokens))


def _halves(each: _Set, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    training, testing = split(rows, TEST_SHARE, seed=0)
    return training, [row for row in testing if row.model == each.model]


def _edges(tokens: Classes) -> tuple[float, ...]:
    return tuple(np.quantile(tokens, CLASS_RANKS).tolist())


def _trace(
    names: tuple[str, str], tokens: Classes, predicted: Classes, edges: tuple[float, ...]
) -> Trace:
    true = np.searchsorted(edges, tokens)
    return Trace(*names, BEFORE_S + TOKEN_S * tokens.astype(np.float64), predicted, true)
