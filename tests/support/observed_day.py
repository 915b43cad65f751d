"""A day of a simulated vLLM server whose steps follow a known law, page by page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

from services.gpuagent.observation.core.record import STEP_S, GpuRecord, Record, ServerRecord
from services.gpuagent.observation.core.server_account import ServerAccount
from services.gpuagent.observation.core.servers import Histogram, ServerFigures
from services.gpuagent.observation.core.steps import StepSums
from services.kit.hardware import gpu_types

START = datetime(2026, 11, 27, tzinfo=UTC)
PAGE_S = 60.0
_BOUNDS_S = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 1.0, math.inf)


@dataclass(frozen=True, slots=True)
class Law:
    """Steps of a server, s and J: fixed, of an answer, of a token of a prompt."""

    fixed_s: float = 0.008
    item_s: float = 0.0002
    prompt_s: float = 2e-5
    fixed_j: float = 2.0
    item_j: float = 0.05
    prompt_j: float = 0.01
    prompt_tokens: float = 400.0
    answer_tokens: float = 200.0


def in_progress(law: Law, rate_rps: float) -> tuple[float, float, float]:
    """Return answers in progress while there are any, their step, s, and the share of such time."""
    items = 1.0
    for _ in range(200):
        busy = 1 - math.exp(-items)
        prompts = law.prompt_tokens * items / busy / law.answer_tokens
        step_s = law.fixed_s + law.item_s * items / busy + law.prompt_s * prompts
        items = 0.5 * items + 0.5 * max(rate_rps * law.answer_tokens * step_s, 1e-3)
    return items / busy, step_s, busy


def day(
    law: Law, *, hours: float = 24.0, gpu: str = "h100-80gb", peak_rps: float = 12.0
) -> list[Record]:
    """Return the records of a day with a sine of load, and of intensity."""
    random, table = Random(0), gpu_types.load(gpu)
    account = ServerAccount("vLLM", "Qwen/Qwen3-8B")
    active_j = requests = prompts = tokens = 0.0
    token, latency = Histogram(), Histogram()
    records, kept = [], StepSums()
    for start_s in range(0, int(3600 * hours), STEP_S):
        began = (active_j, requests, prompts, tokens)
        before = account.steps.flat
        peak = 0.0
        intensity = 250 + 150 * math.sin(2 * math.pi * start_s / 86400)
        for page in range(int(STEP_S / PAGE_S)):
            at_s = start_s + PAGE_S * page
            swing = 0.5 - 0.45 * math.cos(2 * math.pi * at_s / 86400)
            rate_rps = peak_rps * swing * random.uniform(0.8, 1.2)
            items, step_s, busy = in_progress(law, rate_rps)
            steps = busy * PAGE_S / step_s
            made = items * steps
            took = law.prompt_tokens * made / law.answer_tokens
            active_j += steps * (law.fixed_j + law.item_j * items) + law.prompt_j * took
            requests, prompts, tokens = (
                requests + made / law.answer_tokens,
                prompts + took,
                tokens + made,
            )
            token = _with(token, step_s, made)
            latency = _with(latency, law.answer_tokens * step_s, made / law.answer_tokens)
            peak = max(peak, items)
            account.add(
                at_s,
                ServerFigures(
                    "vLLM", "Qwen/Qwen3-8B", requests, prompts, tokens,
                    running=items, waiting=0.0, token=token, latency=latency,
                ),
                active_j,
            )  # fmt: skip
        kept = StepSums.of(account.steps.flat).plus(StepSums.of(before), -1.0)
        used = [
            now - then
            for now, then in zip((active_j, requests, prompts, tokens), began, strict=True)
        ]
        idle_j = table.context_power_w * STEP_S
        energy_j = idle_j + used[0]
        records.append(
            Record(
                int(START.timestamp()) + start_s,
                (
                    GpuRecord(
                        "GPU-0", gpu, float(STEP_S), energy_j, idle_j,
                        energy_j * intensity / 3.6e6, energy_j, float(STEP_S),
                    ),
                ),
                (
                    ServerRecord(
                        "http://127.0.0.1:8000/metrics", "vLLM", "Qwen/Qwen3-8B", ("GPU-0",),
                        float(STEP_S), *used[1:], None, used[0], peak,
                        {"latency": latency, "token": token}, kept,
                    ),
                ),
            )
        )  # fmt: skip
    return records


def _with(before: Histogram, value_s: float, count: float) -> Histogram:
    buckets = {
        bound: before.buckets.get(bound, 0.0) + (count if value_s <= bound else 0.0)
        for bound in _BOUNDS_S
    }
    return Histogram(before.count + count, before.total_s + count * value_s, buckets)
