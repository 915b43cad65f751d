"""Windows of recorded traces: the first is for choosing, the others are reported."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from benchmarks._data import data_file
from benchmarks.llm.engine import Limits, Request

SERVEGEN_SPEED: Final = 1 / 8
_SERVEGEN_HOURS: Final = (0, 6, 18, 24)
_SERVEGEN_WINDOW_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Windows of a trace, of which the first is for choosing.

    Attributes:
        name: With its speed.
        limits: Objective of the trace.
        windows: Requests, each window's from time 0 on.
    """

    name: str
    limits: Limits
    windows: tuple[tuple[Request, ...], ...]


def traces(scale: float = 1.0, windows: int = 4) -> tuple[Trace, ...]:
    """Return all traces; `scale` shortens the windows."""
    conversations = tuple(_azure())
    return (
        Trace("azure x 5", Limits(2.0, 0.04), _cut(conversations, 5.0, 170 * scale, windows)),
        Trace(
            "mooncake x 0.5", Limits(10.0, 0.1), _cut(tuple(_mooncake()), 0.5, 600 * scale, windows)
        ),
        Trace(
            "servegen m-large / 8",
            Limits(2.0, 0.04),
            tuple(
                _servegen(hour, seed, 170 * scale, conversations)
                for seed, hour in enumerate(_SERVEGEN_HOURS[:windows])
            ),
        ),
    )


def _cut(
    trace: tuple[Request, ...], speed: float, span_s: float, windows: int
) -> tuple[tuple[Request, ...], ...]:
    edges = [span_s * number for number in range(windows + 1)]
    fast = [replace(each, arrived_s=each.arrived_s / speed) for each in trace]
    return tuple(
        tuple(
            replace(each, arrived_s=each.arrived_s - begin_s)
            for each in fast
            if begin_s <= each.arrived_s < end_s
        )
        for begin_s, end_s in pairwise(edges)
    )


def _azure() -> Iterator[Request]:
    with data_file("requests/azure_llm_2023_conv.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            yield Request(
                float(row["arrival_s"]),
                max(int(row["input_tokens"]), 1),
                max(int(row["output_tokens"]), 1),
            )


def _mooncake() -> Iterator[Request]:
    with data_file("requests/mooncake_conversation.jsonl").open() as lines:
        for line in lines:
            row = json.loads(line)
            yield Request(
                row["timestamp"] / 1e3,
                max(row["input_length"], 1),
                max(row["output_length"], 1),
                blocks=tuple(row["hash_ids"]),
            )


def _servegen(
    hour: int, seed: int, span_s: float, lengths: tuple[Request, ...]
) -> tuple[Request, ...]:
    """Draw arrivals of ServeGen's eight biggest clients, each with its rate and burstiness.

    Gaps are Gamma, of the client's rate and coefficient of variation. Lengths of texts were not
    published with them: they are drawn from Azure's conversations, both of one request.
    """
    random = np.random.default_rng(seed)
    arrivals_s: list[float] = []
    with data_file("requests/servegen_m-large_top8_clients.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            if float(row["t_s"]) != hour * 3600 or span_s > _SERVEGEN_WINDOW_S:
                continue
            shape = float(row["iat_cv"]) ** -2
            gap_s = 1 / (float(row["rps"]) * SERVEGEN_SPEED)
            count = int(4 * span_s / gap_s) + 100
            at_s = np.cumsum(random.gamma(shape, gap_s / shape, count))
            arrivals_s += at_s[at_s < span_s].tolist()
    drawn = random.integers(len(lengths), size=len(arrivals_s))
    return tuple(
        replace(lengths[index], arrived_s=at_s)
        for at_s, index in zip(sorted(arrivals_s), drawn, strict=True)
    )
