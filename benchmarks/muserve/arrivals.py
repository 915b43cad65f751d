"""Real arrivals, given to the models in turn: Azure's and Mooncake's."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import data_file
from benchmarks.muserve.mix import GENERATES, TABLE
from benchmarks.muserve.planning.pipelines import Job

LONGEST_TOKENS: Final = 512
"""A longer answer counts as one of this length: Table 1's latencies are for so many tokens."""

FIXED: Final = 0.1
"""Share of such a request's time that does not depend on its length."""

Name = Literal["azure", "mooncake"]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as they came. Attributes: at_s, ascending from 0; sizes over that of 512 tokens."""

    at_s: NDArray[np.float64]
    sizes: NDArray[np.float64]


@cache
def trace(name: Name) -> Trace:
    """Return a trace.

    Raises:
        Skipped: The file is not there.
    """
    at_s, tokens = _azure() if name == "azure" else _mooncake()
    rng = np.random.default_rng(0)
    if name == "mooncake":  # its clock ticks every 3 s: those of a tick came within it
        ticks = np.unique(at_s)
        at_s = np.sort(at_s + rng.uniform(0.0, np.median(np.diff(ticks)), len(at_s)))
    sizes = FIXED + (1 - FIXED) * np.minimum(tokens, LONGEST_TOKENS) / LONGEST_TOKENS
    return Trace(at_s - at_s[0], sizes)


def jobs(
    name: Name, rate_rps: float, since: int, length_s: float, *, shortest_first: bool = False
) -> list[Job]:
    """Return requests for all models at a mean rate, all models together.

    Time is stretched to the rate. Requests go to the models in turn (mu-Serve, section 4.1), so
    that all models have the same rate.

    Args:
        name: Trace of the arrivals and answer lengths.
        rate_rps: Mean over the trace.
        since: Requests of the trace to leave out.
        length_s: Length of the stream, s.
        shortest_first: Generating models serve short answers first, by lengths predicted as well as
            mu-Serve's predictor does, and those who waited long before them.
    """
    whole = trace(name)
    stretched_s = (whole.at_s - whole.at_s[since]) * _stretch(whole, rate_rps)
    stretched_s, sizes = stretched_s[since:], whole.sizes[since:]
    count = int(np.searchsorted(stretched_s, length_s))
    rng = np.random.default_rng(1)
    predicted = predict(sizes[:count], rng)
    order = rng.permutation(len(TABLE))
    found = []
    for number in range(count):
        row = TABLE[order[number % len(TABLE)]]
        at_s, size = float(stretched_s[number]), 1.0
        rank = None
        if row.name in GENERATES:
            size = float(sizes[number])
            rank = (
                at_s + AGING * float(predicted[number]) * row.latency_s if shortest_first else None
            )
        found.append(Job(at_s, row.name, size, rank))
    return found


def dealt(
    models: Sequence[str], name: Name, rate_rps: float, since: int, length_s: float
) -> list[Job]:
    """Return requests for models in turn, all of one size. Args: as of `jobs`."""
    whole = trace(name)
    stretched_s = ((whole.at_s - whole.at_s[since]) * _stretch(whole, rate_rps))[since:]
    order = np.random.default_rng(1).permutation(len(models))
    count = int(np.searchsorted(stretched_s, length_s))
    return [
        Job(float(at_s), models[order[number % len(models)]])
        for number, at_s in enumerate(stretched_s[:count])
    ]


def _stretch(whole: Trace, rate_rps: float) -> float:
    return float(len(whole.at_s) / whole.at_s[-1] / rate_rps)


AGING: Final = 3.0
"""A request goes before one that came earlier by up to this times the difference of their work."""

ACCURACY: Final = 0.43
"""Share of length classes predicted right (Table 2)."""

RANKS: Final = (0.25, 0.5, 0.75, 0.99)


def predict(sizes: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return sizes as predicted: the mean of one of five classes, often the true one.

    A wrong one is a neighbour of the true one, as an ordinal classifier's mostly are.
    """
    edges = np.quantile(sizes, RANKS)
    true = np.searchsorted(edges, sizes)
    wrong = np.clip(true + rng.choice((-1, 1), len(sizes)), 0, len(RANKS))
    chosen = np.where(rng.random(len(sizes)) < ACCURACY, true, wrong)
    known = range(len(RANKS) + 1)
    means = np.array(
        [sizes[true == each].mean() if (true == each).any() else 1.0 for each in known]
    )
    return np.asarray(means[chosen])


def rates_rps(found: list[Job], length_s: float) -> dict[str, float]:
    """Return requests per second by model."""
    counts = Counter(job.model for job in found)
    return {row.name: counts[row.name] / length_s for row in TABLE}


def work(name: Name) -> float:
    """Return the mean work of a request to a generating model over that of 512 tokens."""
    return float(trace(name).sizes.mean())


def _azure() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with data_file("requests/azure_llm_2023_conv.csv").open(newline="") as lines:
        rows = [(float(r["arrival_s"]), float(r["output_tokens"])) for r in csv.DictReader(lines)]
    at_s, tokens = np.array(rows).T
    return at_s, tokens


def _mooncake() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with data_file("requests/mooncake_conversation.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    at_s = np.array([row["timestamp"] / 1000.0 for row in rows])
    return at_s, np.array([float(row["output_length"]) for row in rows])
