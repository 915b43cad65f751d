"""A day of a simulated vLLM server whose steps follow a known law, page by page."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random

from services.gpuagent.observation.core.record import STEP_S, GpuRecord, Record, ServerRecord
from services.gpuagent.observation.core.server_account import ServerAccount
from services.gpuagent.observation.core.steps import StepSums
from services.kit.hardware import gpu_types
from services.kit.server_metrics.figures import Histogram, ServerFigures
from services.kit.units import J_PER_KWH

START = datetime(2026, 11, 27, tzinfo=UTC)
PAGE_S = 60
MODEL = "Qwen/Qwen3-8B"
_BOUNDS_S = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 1.0, 2.0, 3.0, 5.0, 10.0, math.inf)


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


@dataclass
class LawfulServer:
    """A vLLM server whose steps follow a law. Attributes: law, active_j, page (its counters)."""

    law: Law = field(default_factory=Law)
    active_j: float = 0.0
    page: ServerFigures = field(
        default_factory=lambda: ServerFigures(
            "vLLM", MODEL, 0.0, 0.0, 0.0, running=0.0, waiting=0.0, token=Histogram(),
            latency=Histogram(),
        )
    )  # fmt: skip

    def advance(self, length_s: float, rate_rps: float, stretch: float = 1.0) -> None:
        """Serve a load for a while; at a lower clock steps take longer."""
        law, page = self.law, self.page
        slower = replace(
            law,
            fixed_s=law.fixed_s * stretch,
            item_s=law.item_s * stretch,
            prompt_s=law.prompt_s * stretch,
        )
        items, step_s, busy = in_progress(slower, rate_rps)
        steps = busy * length_s / step_s
        made, answers = items * steps, items * steps / law.answer_tokens
        took = law.prompt_tokens * answers
        self.active_j += steps * (law.fixed_j + law.item_j * items) + law.prompt_j * took
        self.page = replace(
            page,
            requests=(page.requests or 0.0) + answers,
            prompt_tokens=(page.prompt_tokens or 0.0) + took,
            answer_tokens=(page.answer_tokens or 0.0) + made,
            running=items,
            token=_with(page.token or Histogram(), step_s, made),
            latency=_with(page.latency or Histogram(), law.answer_tokens * step_s, answers),
        )


def day(
    law: Law, *, hours: float = 24.0, gpu: str = "h100-80gb", peak_rps: float = 12.0
) -> list[Record]:
    """Return the records of a day with a sine of load, and of intensity."""
    random, idle_w = Random(0), gpu_types.load(gpu).context_power_w
    server, account, records = LawfulServer(law), ServerAccount("vLLM", MODEL), list[Record]()
    for start_s in range(0, int(3600 * hours), STEP_S):
        before, steps, used_j = server.page, StepSums.of(account.steps.flat), server.active_j
        account.peak_recorded = 0.0
        for at_s in range(start_s, start_s + STEP_S, PAGE_S):
            swing = 0.5 - 0.45 * math.cos(2 * math.pi * at_s / 86400)
            server.advance(PAGE_S, peak_rps * swing * random.uniform(0.8, 1.2))
            account.add(at_s, server.page, server.active_j)
        used_j = server.active_j - used_j
        energy_j, length_s = idle_w * STEP_S + used_j, float(STEP_S)
        intensity = 250 + 150 * math.sin(2 * math.pi * start_s / 86400)
        gpus = GpuRecord(
            "GPU-0", gpu, length_s, energy_j, energy_j - used_j,
            energy_j * intensity / J_PER_KWH, energy_j, length_s,
        )  # fmt: skip
        amounts = {
            name: getattr(server.page, name) - getattr(before, name)
            for name in ("requests", "prompt_tokens", "answer_tokens")
        }
        served = ServerRecord(
            "http://127.0.0.1:8000/metrics", "vLLM", MODEL, ("GPU-0",), length_s, **amounts,
            active_j=used_j, peak_running=account.peak_recorded,
            times={
                name: getattr(server.page, name).since(getattr(before, name))
                for name in ("latency", "token")
            },
            steps=account.steps.plus(steps, -1.0),
        )  # fmt: skip
        records.append(Record(int(START.timestamp()) + start_s, (gpus,), (served,)))
    return records


def _with(before: Histogram, value_s: float, count: float) -> Histogram:
    buckets = {
        bound: before.buckets.get(bound, 0.0) + (count if value_s <= bound else 0.0)
        for bound in _BOUNDS_S
    }
    return Histogram(before.count + count, before.total_s + count * value_s, buckets)
