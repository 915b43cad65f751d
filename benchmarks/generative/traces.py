"""Answers of real models: how long each was, and how long it was foretold to be.

Lengths come from `../shared/data`, beside the repository.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.generative.serving import Classes, Seconds
from benchmarks.harness import Skipped
from services.predictor.embedding.minilm import MiniLm
from services.predictor.estimate import CLASS_RANKS
from services.predictor.histories import Histories
from services.predictor.training.export import to_onnx
from services.predictor.training.fit import fit
from services.predictor.training.rows import Row, read, split
from services.router.boost import CLASSES

DATA = Path(__file__).parents[2] / "../shared/data"

BEFORE_S, TOKEN_S = 0.1, 0.02
"""What an answer takes: so much, and so much more per token."""

TEST_SHARE = 0.5
"""Of the prompts of a set that our predictor is trained on: those that it is judged by."""

_EDGES_TOKENS = (42, 141, 294, 503)  # of the artifact's classes
_ARTIFACT = "proxy-models/vicuna13b_length_predictions.csv"


@dataclass(frozen=True, slots=True)
class Trace:
    """Answers of one model.

    Attributes:
        name: Whose, and who foretold their lengths.
        services_s: How long each takes, shape (answers,).
        told: The class foretold, 0..4, shape (answers,).
        true: The class it is of, 0..4, shape (answers,).
    """

    name: str
    services_s: Seconds
    told: Classes
    true: Classes


def artifact() -> Trace:
    """Return vicuna-13b on LMSYS-Chat-1M, foretold by mu-Serve's own proxy model (BERT-base).

    Raises:
        Skipped: The file is not there.
    """
    file = DATA / _ARTIFACT
    if not file.is_file():
        raise Skipped(f"no {_ARTIFACT} in {DATA}")
    with file.open(newline="") as lines:
        rows = [
            (int(row["output_tokens"]), int(row["pred_5class"])) for row in csv.DictReader(lines)
        ]
    tokens, told = np.array(rows).T
    return _trace("vicuna-13b, mu-Serve's predictor", tokens, told, _EDGES_TOKENS)


def ours() -> list[Trace]:
    """Return prompts that our predictor has not seen, foretold by it.

    It is trained on half of each set's prompts, as from a user's own logs, and learns on as it does
    live: each answer's length after it was foretold.
    """
    sets = (
        ("GPT-4 (GPTeacher), our predictor", "gpteacher.jsonl"),
        ("ChatGPT (ShareGPT), our predictor", "sharegpt_first_turn.jsonl"),
    )
    files = [(name, DATA / "prompts" / file) for name, file in sets]
    return [_foretold(name, read(file)) for name, file in files if file.is_file()]


def _foretold(name: str, rows: list[Row]) -> Trace:
    training, testing = split(rows, TEST_SHARE, seed=0)
    embed = MiniLm().embed
    with TemporaryDirectory() as folder:
        file = Path(folder) / "predictor.onnx"
        file.write_bytes(to_onnx(fit(training, embed)))
        histories = Histories.of(file, {row.model for row in rows})
    told = []
    for row in testing:
        estimate = histories.predict(row.model, row.prompt, embed(row.prompt))
        rank = histories.rank(row.model, estimate.expected_tokens)
        told.append(estimate.class_ if rank is None else min(int(rank * CLASSES), CLASSES - 1))
        histories.observe(row.model, estimate, row.tokens)
    tokens = np.array([row.tokens for row in testing])
    edges = np.quantile(tokens, CLASS_RANKS)
    return _trace(name, tokens, np.array(told), tuple(edges.tolist()))


def _trace(name: str, tokens: Classes, told: Classes, edges: tuple[float, ...]) -> Trace:
    true = np.searchsorted(edges, tokens)
    return Trace(name, BEFORE_S + TOKEN_S * tokens.astype(np.float64), told, true)
