"""Language models on a simulated fleet in virtual time: energy per token at objectives of tokens.

Replicas of one model, one on each H100, batch continuously: each step decodes every open answer and
takes in up to a chunk of prompts, and lasts and draws what the profile of language models says
(`services/kit/profiles/core/language.py`). Requests are those of the Azure and Mooncake traces. The
policies differ in which replica takes a request, how many replicas are powered, and at what clock:

- round robin, least requests: all replicas at the highest clock, as vLLM behind a balancer runs;
- fewest GPUs: least requests on as many replicas at the highest clock as keep the objective for
  99 % of this very trace, which an operator could not know;
- lower clock: least requests on all GPUs at the plan's clock;
- plan: replicas and clock as the planner's catalog chooses for the objective and the peak load,
  least requests among them; other GPUs are parked, at idle power;
- bound: every token at the batch and clock of least energy that keeps the time between tokens.

There prefixes are not cached. A second table has four replicas that cache them, at the highest
clock on Mooncake's trace, whose prompts have names of blocks: round robin, least requests, and the
router's choice "prefix" (`by_prefix` itself, on requests with a text of as many blocks).

Idle power of all GPUs counts, the parked ones included. Lower clocks draw what `clock_curve` says,
which was measured on a V100.
"""

from __future__ import annotations

import csv
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import product
from typing import Any, Final

import numpy as np

from benchmarks._data import data_file
from benchmarks._fleets import gpu_type
from benchmarks.harness import Figures, Report, main
from inference import grpc_service_pb2 as oip
from services.kit.config import Objective
from services.kit.profiles.core.clock_curve import curve_of
from services.kit.profiles.core.language import LanguageProfile
from services.planner.core.model import Model, Pool, Variant
from services.planner.core.problem import catalog
from services.router.core.balancing.instance_choice import by_prefix
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance
from services.router.core.model import Request as RouterRequest
from services.router.core.pending_request import PendingRequest
from services.router.core.prefix_cache import PrefixCache

GPUS: Final = 8
ATTAINMENT: Final = 0.99
SLOTS: Final = 256
CHUNK_TOKENS: Final = 512
CLOCKS: Final = (0.6, 0.7, 0.8, 0.9, 1.0)
_INTENSITY_G_PER_KWH: Final = 300.0
PROFILE: Final = LanguageProfile(8.0)
BLOCK_TOKENS: Final = 512  # of Mooncake's trace
TEXT_BYTES: Final = 4  # of a token
CACHES: Final = {"GPU memory": 800, "with host memory": 8000}
"""Blocks that a replica caches: 128 KiB a token (Llama 3 8B, 16 bit) in 52 GB, and ten times it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The objective of a trace. Attributes: ttft_s, tpot_s."""

    ttft_s: float
    tpot_s: float


@dataclass(slots=True)
class Request:
    """A request of a trace.

    Attributes: times in s since the trace's start, 0: not yet; names of its prompt's blocks.
    """

    arrived_s: float
    input_tokens: int
    output_tokens: int
    first_s: float = 0.0
    ended_s: float = 0.0
    blocks: tuple[int, ...] = ()

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> float:
        """Mean time between tokens."""
        return (self.ended_s - self.first_s) / max(self.output_tokens - 1, 1)


class Engine:
    """The profile at one clock: what a step of one GPU takes and draws.

    Args:
        profile: The model's.
        clock_ratio: SM clock over the highest.
    """

    def __init__(self, profile: LanguageProfile, clock_ratio: float) -> None:
        gpu = gpu_type("h100-80gb")
        self.shape = gpu.shape(catalog.whole(Pool(gpu, "", 1.0, _INTENSITY_G_PER_KWH)))
        self.profile = profile
        curve = curve_of(self.shape.gpu)
        self._decode = curve.stretch(profile.decode_sensitivity, clock_ratio)
        self._prefill = curve.stretch(profile.prefill_sensitivity, clock_ratio)
        self._power = curve.power_ratio(clock_ratio)

    def step(self, sequences: int, context: float, prompt: int) -> tuple[float, float]:
        """Return the time of a step, s, and its active energy, J; `context` is each answer's."""
        fast_s = self.profile.step_s(self.shape, sequences, context)
        whole_s = self.profile.step_s(self.shape, sequences, context, prompt)
        time_s = fast_s * self._decode + (whole_s - fast_s) * self._prefill
        power_w = self.profile.step_power_w(self.shape, sequences, context, prompt, step_s=whole_s)
        return time_s, power_w * self._power * time_s


@dataclass(slots=True, eq=False)
class Replica:
    """One GPU with continuous batching."""

    engine: Engine
    waiting: deque[list[Any]] = field(default_factory=deque)  # request, tokens of its prompt left
    open: list[tuple[int, int, Request]] = field(default_factory=list)  # by the step that ends it
    context: float = 0.0  # of all open answers together
    steps: int = 0
    active_j: float = 0.0
    begun: list[Request] = field(default_factory=list)
    busy: bool = False
    number: int = 0
    cache: PrefixCache | None = None
    cached: int = 0  # tokens of prompts that were not computed

    @property
    def requests(self) -> int:
        """Requests that it has."""
        return len(self.waiting) + len(self.open)

    def begin(self, now_s: float) -> float:
        """Begin a step; return when it ends."""
        left = CHUNK_TOKENS
        while self.waiting and left and len(self.open) + len(self.begun) < SLOTS:
            self._reuse(self.waiting[0])
            taken = min(self.waiting[0][1], left)
            self.waiting[0][1] -= taken
            left -= taken
            if not self.waiting[0][1]:
                self.begun.append(self.waiting.popleft()[0])
        count = len(self.open)
        mean = self.context / count if count else 0.0
        time_s, energy_j = self.engine.step(count, mean, CHUNK_TOKENS - left)
        self.active_j += energy_j
        self.busy = True
        return now_s + time_s

    def _reuse(self, waiting: list[Any]) -> None:
        """Take from a prompt that begins what is cached; the last token is always computed."""
        request, left = waiting
        if self.cache is not None and left == request.input_tokens:
            found = min(self.cache.matched(request.blocks) * BLOCK_TOKENS, left - 1)
            waiting[1] -= found
            self.cached += found

    def end(self, now_s: float) -> None:
        """End the step: every open answer has one token more."""
        self.steps += 1
        self.context += len(self.open)
        while self.open and self.open[0][0] <= self.steps:
            _, _, request = heappop(self.open)
            request.ended_s = now_s
            self.context -= request.input_tokens + request.output_tokens
        for request in self.begun:  # the prompt's last step gives the first token
            request.first_s = now_s
            if self.cache is not None:
                self.cache.add(request.blocks)
            if request.output_tokens <= 1:
                request.ended_s = now_s
                continue
            self.number += 1
            self.context += request.input_tokens + 1
            heappush(self.open, (self.steps + request.output_tokens - 1, self.number, request))
        self.begun.clear()
        self.busy = False


Choose = Callable[[Sequence[Replica], int], Replica]


def round_robin(replicas: Sequence[Replica], number: int) -> Replica:
    """Return the next replica in turn."""
    return replicas[number % len(replicas)]


def least_requests(replicas: Sequence[Replica], _: int) -> Replica:
    """Return the replica with the fewest requests."""
    return min(replicas, key=lambda replica: replica.requests)


def serve(requests: Sequence[Request], replicas: Sequence[Replica], choose: Choose) -> float:
    """Serve a trace; return when the last answer ended, s."""
    ends: list[tuple[float, int]] = []
    now_s, coming = 0.0, 0
    while coming < len(requests) or ends:
        if coming < len(requests) and (not ends or requests[coming].arrived_s <= ends[0][0]):
            request, now_s = requests[coming], requests[coming].arrived_s
            replica = choose(replicas, coming)
            replica.waiting.append([request, request.input_tokens])
            coming += 1
        else:
            now_s, index = heappop(ends)
            replica = replicas[index]
            replica.end(now_s)
        if not replica.busy and replica.requests:
            heappush(ends, (replica.begin(now_s), replicas.index(replica)))
    return now_s


# ---- policies ----------------------------------------------------------------------------------


def run(
    trace: Sequence[Request], limits: Limits, gpus: int, clock: float, choose: Choose
) -> dict[str, Any]:
    """Return the figures of a policy that powers so many GPUs at one clock."""
    requests = [replace(request) for request in trace]
    replicas = [Replica(Engine(PROFILE, clock)) for _ in range(gpus)]
    span_s = serve(requests, replicas, choose)
    ttft_s = [each.ttft_s for each in requests]
    tpot_s = [each.tpot_s for each in requests]
    kept = sum(each.ttft_s <= limits.ttft_s and each.tpot_s <= limits.tpot_s for each in requests)
    idle_w = replicas[0].engine.shape.idle_power_w
    energy_j = sum(replica.active_j for replica in replicas) + GPUS * idle_w * span_s
    tokens = sum(each.output_tokens for each in requests)
    return {
        "j_per_token": energy_j / tokens,
        "g_per_token": energy_j / tokens / 3.6e6 * _INTENSITY_G_PER_KWH,
        "ttft_p99_s": float(np.percentile(ttft_s, 99)),
        "tpot_p99_s": float(np.percentile(tpot_s, 99)),
        "attainment": kept / len(requests),
        "gpus": gpus,
        "clock": clock,
    }


def smallest(trace: Sequence[Request], limits: Limits, clock: float) -> dict[str, Any] | None:
    """Return the figures of the smallest fleet that keeps the objective at a clock."""
    for gpus in range(1, GPUS + 1):
        found = run(trace, limits, gpus, clock, least_requests)
        if found["attainment"] >= ATTAINMENT:
            return found
    return None


def planned(
    trace: Sequence[Request], limits: Limits, profile: LanguageProfile
) -> tuple[int, float]:
    """Return the replicas and the clock that the planner's catalog gives for the busiest minute."""
    minutes = np.bincount([int(each.arrived_s // 60) for each in trace])
    pool = Pool(gpu_type("h100-80gb"), "", 1.0, _INTENSITY_G_PER_KWH)
    model = Model(
        "text", 1e4, 99.0, 1.0, (Variant("8b", 1.0, profile),),
        slo_first_token_s=limits.ttft_s, slo_token_s=limits.tpot_s,
    )  # fmt: skip
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    kinds = catalog.build([model], [pool], Objective(), sizes, 1, clock_ratios=CLOCKS)
    whole = catalog.whole(pool).name
    best = min((k for k in kinds if k.profile == whole), key=lambda kind: kind.energy_j)
    usable_rps = Objective().max_utilisation * best.throughput_rps
    clock = best.clock_mhz / pool.type.max_clock_mhz if best.clock_mhz else 1.0
    return min(math.ceil(minutes.max() / 60 / usable_rps), GPUS), clock


def bound_j_per_token(trace: Sequence[Request], limits: Limits) -> float:
    """Return a bound: tokens at the batch and clock of least energy, and all GPUs' idle power."""
    outputs = sum(each.output_tokens for each in trace)
    inputs = sum(each.input_tokens for each in trace)
    context = float(np.mean([each.input_tokens + each.output_tokens / 2 for each in trace]))
    least_j = math.inf
    for clock, sequences in product(CLOCKS, (1, 2, 4, 8, 16, 32, 64, 128, SLOTS)):
        engine = Engine(PROFILE, clock)
        decode_s, decode_j = engine.step(sequences, context, 0)
        _, whole_j = engine.step(sequences, context, CHUNK_TOKENS)
        if decode_s <= limits.tpot_s:
            prompts_j = inputs * max(whole_j - decode_j, 0.0) / CHUNK_TOKENS
            least_j = min(least_j, outputs * decode_j / sequences + prompts_j)
    idle_w = Engine(PROFILE, 1.0).shape.idle_power_w
    span_s = max(each.arrived_s for each in trace)
    return (least_j + GPUS * idle_w * span_s) / outputs


# ---- prefixes ----------------------------------------------------------------------------------


class ByPrefix:
    """The router's choice "prefix".

    Args:
        trace: The requests, in order.
        replicas: How many.

    Attributes:
        spent_s: Time that it took, of this machine.
    """

    def __init__(self, trace: Sequence[Request], replicas: int) -> None:
        self._trace = trace
        self._states = [
            InstanceState(Instance(f"{i}:1", str(i), "text", "8b", 1.0, 1.0, SLOTS))
            for i in range(replicas)
        ]
        self.spent_s = 0.0

    def __call__(self, replicas: Sequence[Replica], number: int) -> Replica:
        """Return the replica of the next request."""
        for state in self._states:
            for each in [each for each in state.in_flight if self._trace[each].ended_s]:
                del state.in_flight[each]
        body = body_of(self._trace[number])
        pending = PendingRequest(RouterRequest(number, "text", body, 0.0, math.inf))
        begun_s = time.perf_counter()
        chosen = by_prefix(self._states, pending)
        chosen.prefixes.add(pending.prefix())
        self.spent_s += time.perf_counter() - begun_s
        chosen.in_flight[number] = pending
        chosen.used_at = number + 1
        return replicas[self._states.index(chosen)]


def body_of(request: Request) -> bytes:
    """Return a request with a prompt that begins like another's where the trace's does."""
    words = b"".join(
        block.to_bytes(8, "little") * (BLOCK_TOKENS * TEXT_BYTES // 8) for block in request.blocks
    )[: request.input_tokens * TEXT_BYTES]
    made = oip.ModelInferRequest(model_name="text")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(len(words).to_bytes(4, "little") + words)
    return made.SerializeToString()


def reuse(trace: Sequence[Request], limits: Limits, gpus: int) -> list[dict[str, Any]]:
    """Return, by size of cache and choice, what replicas that cache prefixes need not compute."""
    rows = []
    for (memory, blocks), choice in product(
        CACHES.items(), ("round robin", "least requests", "prefix")
    ):
        requests = [replace(request) for request in trace]
        replicas = [Replica(Engine(PROFILE, 1.0), cache=PrefixCache(blocks)) for _ in range(gpus)]
        by = ByPrefix(requests, gpus)
        chosen: Choose = {"round robin": round_robin, "least requests": least_requests}.get(
            choice, by
        )
        serve(requests, replicas, chosen)
        active_j = [replica.active_j for replica in replicas]
        kept = sum(r.ttft_s <= limits.ttft_s and r.tpot_s <= limits.tpot_s for r in requests)
        rows.append({
            "cache": memory,
            "choice": choice,
            "reused": sum(each.cached for each in replicas) / sum(r.input_tokens for r in requests),
            "busiest_over_mean": max(active_j) / (sum(active_j) / gpus),
            "active_j_per_token": sum(active_j) / sum(r.output_tokens for r in requests),
            "ttft_p50_s": float(np.percentile([r.ttft_s for r in requests], 50)),
            "ttft_p99_s": float(np.percentile([r.ttft_s for r in requests], 99)),
            "attainment": kept / len(requests),
            "choice_us": by.spent_s / len(requests) * 1e6,
        })  # fmt: skip
    return rows


# ---- traces ------------------------------------------------------------------------------------


def azure(span_s: float, speed: float) -> Iterator[Request]:
    """Yield Azure's conversations, `speed` times as fast."""
    with data_file("requests/azure_llm_2023_conv.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            at_s = float(row["arrival_s"]) / speed
            if at_s > span_s:
                return
            yield Request(at_s, max(int(row["input_tokens"]), 1), max(int(row["output_tokens"]), 1))


def mooncake(span_s: float, speed: float) -> Iterator[Request]:
    """Yield Mooncake's conversations, `speed` times as fast."""
    with data_file("requests/mooncake_conversation.jsonl").open() as lines:
        for line in lines:
            row = json.loads(line)
            at_s = row["timestamp"] / 1e3 / speed
            if at_s > span_s:
                return
            blocks = tuple(row["hash_ids"])
            yield Request(
                at_s, max(row["input_length"], 1), max(row["output_length"], 1), blocks=blocks
            )


def measure(span_s: float = 300.0) -> Report:
    """Run every policy on every trace."""
    rows: list[dict[str, Any]] = []
    bounds: dict[str, float] = {}
    for name, limits, trace in (
        ("azure x 5", Limits(2.0, 0.04), list(azure(span_s, 5.0))),
        ("mooncake x 0.5", Limits(10.0, 0.1), list(mooncake(span_s, 0.5))),
    ):
        usual = replace(
            PROFILE,
            prompt_tokens=float(np.mean([each.input_tokens for each in trace])),
            answer_tokens=float(np.mean([each.output_tokens for each in trace])),
        )
        gpus, clock = planned(trace, limits, usual)
        found: dict[str, dict[str, Any] | None] = {
            "round robin": run(trace, limits, GPUS, 1.0, round_robin),
            "least requests": run(trace, limits, GPUS, 1.0, least_requests),
            "fewest GPUs": smallest(trace, limits, 1.0),
            "lower clock": run(trace, limits, GPUS, clock, least_requests),
            "plan": run(trace, limits, gpus, clock, least_requests),
        }
        rows += [{"trace": name, "policy": policy} | row for policy, row in found.items() if row]
        bounds[name] = bound_j_per_token(trace, limits)
    said = ", ".join(f"{name}: {each:.3g} J per token" for name, each in bounds.items())
    title = f"Eight billion parameters on {GPUS} H100 in {span_s:g} s of traces"
    prefixes = reuse(list(mooncake(2 * span_s, 0.5)), Limits(10.0, 0.1), 4)
    return Report(
        [
            Figures(title, rows, f"Bound of {said}"),
            Figures(f"4 H100 that cache prefixes, {2 * span_s:g} s of Mooncake x 0.5", prefixes),
        ],
        {"traces": rows, "bound": bounds, "prefixes": prefixes},
    )


if __name__ == "__main__":
    main("llm", measure, quick=lambda: measure(120.0))
