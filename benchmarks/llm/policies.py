"""Policies: replica, clock and power of each request, and settings that are chosen in advance."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.llm.engine import (
    CHOSEN_ATTAINMENT,
    CLOCKS,
    INTENSITY_G_PER_KWH,
    KV_TOKENS,
    POOL,
    PROFILE,
    SLOTS,
    Choose,
    ClockAt,
    Engine,
    Limits,
    Request,
    gpu,
    least_requests,
    round_robin,
    serve,
)
from benchmarks.llm.prefixes import TEXT_BYTES, ByPrefix
from cinquefoil.planner.v1.records import Dispersion
from services.kit.config import Objective
from services.kit.profiles.core.language import PROMPT_TOKENS_PER_STEP
from services.kit.request_cost import Cost, Usage
from services.planner.core.model import POISSON, Model, Variant
from services.planner.core.problem import catalog
from services.planner.core.problem.latency_rule import admissible_rps
from services.router.core.balancing.weigher import CarbonSignal
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance
from services.router.core.model import Request as RouterRequest
from services.router.core.pending_request import PendingRequest
from services.router.core.prefix_cache import PrefixCache
from services.router.core.token_times import HEADROOM, TokenObjective
from services.simulator.continuous_batching import Replica

GPUS: Final = 8
CACHE_BLOCKS: Final = 800  # of a replica; beside `KV_TOKENS`, which a server would share with it
CAPS_W: Final = (700, 600, 500, 450, 400, 360)
CHUNKS: Final = (512, 1024)
HEADROOMS: Final = (0.5, 0.6, 0.7, 0.8, 0.9)
_MINUTE_S: Final = 60.0
_ROUNDING: Final = 1 + 1e-9
_ROUNDING_RPS: Final = 1e-9
Tokens = NDArray[np.int64]

_GEOMETRY: Final = replace(POOL.type.geometry, kinds=(catalog.whole(POOL),))
_WHOLE_GPUS: Final = replace(POOL, type=replace(POOL.type, geometry=_GEOMETRY))

Window = Sequence[Request]


def fixed(clock: float) -> ClockAt:
    """Return one clock at all times."""
    return lambda _, __: clock


def capped(power_w: float) -> ClockAt:
    """Return the highest clock at which the next steps draw no more; the lowest, if none does."""

    def clock_at(replica: Replica, now_s: float) -> float:
        for clock in reversed(CLOCKS):
            time_s, energy_j = _usual_step(replica, clock, now_s)
            if replica.engine.shape.context_power_w + energy_j / time_s <= power_w * _ROUNDING:
                return clock
        return CLOCKS[0]

    return clock_at


def _usual_step(replica: Replica, clock: float, now_s: float) -> tuple[float, float]:
    prompt = replica.chunk if replica.waiting else 0
    return replica.engine.step(clock, len(replica.open), replica.mean_context(now_s), prompt)


@dataclass(frozen=True, slots=True)
class Consolidated:
    """As few replicas as the objectives allow, each at the lowest clock that they allow.

    Attributes:
        limits: The objective.
        headroom: Share of it that may be used up, 0..1.
        prompt_per_token: Tokens of prompts for each token generated, usually.
    """

    limits: Limits
    headroom: float
    prompt_per_token: float

    def __call__(self, replicas: Sequence[Replica], request: Request, _: int) -> Replica:
        """Return the first replica that keeps the objective; if none does, the emptiest."""
        free = [replica for replica in replicas if self._has_room(replica, request)]
        if free:
            return max(free, key=lambda replica: _reusable(replica, request))
        return min(replicas, key=lambda replica: (replica.waiting_tokens, replica.requests))

    def _has_room(self, replica: Replica, request: Request) -> bool:
        count = replica.requests + 1
        if count > SLOTS or replica.kept + replica.waiting_tokens + request.tokens > KV_TOKENS:
            return count == 1
        time_s = replica.engine.time_s
        context = max(replica.mean_context(request.arrived_s), request.input_tokens)
        token_s = time_s(CLOCKS[0], count, context, count * self.prompt_per_token)
        chunk_s = time_s(CLOCKS[0], count, context, replica.chunk)
        chunks = math.ceil((replica.waiting_tokens + request.input_tokens) / replica.chunk)
        objective = TokenObjective(self.limits.ttft_s, self.limits.tpot_s, self.headroom)
        return objective.allows((chunks + 1) * chunk_s, token_s)

    def clock_at(self, replica: Replica, now_s: float) -> float:
        """Return the lowest clock at which tokens and the oldest prompt are in time."""
        chunks = math.ceil(replica.waiting_tokens / replica.chunk)
        oldest_s = min((each.request.arrived_s for each in replica.waiting), default=now_s)
        left_s = self.headroom * self.limits.ttft_s - (now_s - oldest_s)
        count, context = len(replica.open), replica.mean_context(now_s)
        for clock in CLOCKS:
            chunk_s, _ = _usual_step(replica, clock, now_s)
            token_s = replica.engine.time_s(clock, count, context, count * self.prompt_per_token)
            if token_s <= self.headroom * self.limits.tpot_s and chunks * chunk_s <= left_s:
                return clock
        return CLOCKS[-1]


def _reusable(replica: Replica, request: Request) -> int:
    return replica.cache.matched(request.blocks) if replica.cache and request.blocks else 0


class AsRouter:
    """The router's choice "consolidated": it knows only what answers that ended took.

    Args:
        trace: The requests, in order.
        replicas: Number of replicas.
        limits: The objective.
        kv_stated: Servers state the size of their KV cache, as vLLM's and SGLang's do.
        zones: Zone of each replica.
        carbon: Intensities of zones; None: not known.
    """

    def __init__(  # noqa: PLR0913  # what a benchmark varies
        self,
        trace: Window,
        replicas: int,
        limits: Limits,
        *,
        kv_stated: bool = True,
        zones: Sequence[str] = (),
        carbon: CarbonSignal | None = None,
    ) -> None:
        self._trace = trace
        self._pool = InstancePool("consolidated", carbon)
        zones = zones or [""] * replicas
        self._pool.add(
            Instance(f"{i:03}:1", f"{i:03}", "text", "8b", 1.0, 1.0, SLOTS, zones[i])
            for i in range(replicas)
        )
        for state in self._pool.states.values():
            state.credits, state.up = SLOTS, True
            state.kv_tokens_per_credit = KV_TOKENS // SLOTS if kv_stated else 0
        self._objective = TokenObjective(limits.ttft_s, limits.tpot_s)
        self.serve_with([True] * replicas)

    def serve_with(self, serving: Sequence[bool]) -> None:
        """Give requests to these replicas only, from now on."""
        for state, up in zip(self._pool.states.values(), serving, strict=True):
            state.draining = not up
        self._pool.refresh("consolidated", overloaded=False, tokens=self._objective)

    def __call__(self, replicas: Sequence[Replica], request: Request, number: int) -> Replica:
        """Return the replica of the next request."""
        states = list(self._pool.states.values())
        for state in states:
            for each in [each for each in state.in_flight if self._trace[each].ended_s]:
                ended = state.in_flight[each]
                state.release(each)
                self._learn(state, ended)
            for each, pending in state.in_flight.items():
                if self._trace[each].first_s and not pending.answering:
                    pending.begin_answer(state.instance.id, self._trace[each].first_s)
        arrived_s, body = request.arrived_s, bytes(TEXT_BYTES * request.input_tokens)
        pending = PendingRequest(RouterRequest(number, "text", body, arrived_s, math.inf))
        chosen = self._pool.free(pending, arrived_s)
        if chosen is None:  # it would wait at the router; here, at the server that frees most
            chosen = min(self._pool.eligible, key=lambda state: len(state.in_flight))
        self._pool.hold(chosen, pending, arrived_s)
        return replicas[states.index(chosen)]

    def _learn(self, state: InstanceState, pending: PendingRequest) -> None:
        ended = self._trace[pending.request.number]
        usage = Usage(ended.input_tokens, ended.output_tokens, ended.ttft_s, ended.tpot_s)
        hold_s = ended.ended_s - ended.arrived_s
        cost = Cost(ended.energy_j, 0.0, "model", 0.0, hold_s, 1, 1, usage)
        self._pool.learn(state, pending, ended.ended_s, cost)


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings with which a policy runs.

    Attributes:
        gpus: Powered; the others are parked.
        chunk: Tokens of prompts in a step at most.
        clock_at: Of each replica.
        choose: Made for the requests of a window.
        chosen: Choice made on the first window, for people.
    """

    gpus: int
    chunk: int
    clock_at: ClockAt
    choose: Callable[[Window], Choose]
    chosen: str = ""


def run(window: Window, limits: Limits, setup: Setup) -> dict[str, Any]:
    """Return the figures of a window."""
    requests = [replace(request) for request in window]
    replicas = [
        gpu(Engine(), setup.clock_at, setup.chunk, PrefixCache(CACHE_BLOCKS))
        for _ in range(setup.gpus)
    ]
    span_s = serve(requests, replicas, setup.choose(requests))
    energy_j = sum(replica.active_j for replica in replicas)
    energy_j += GPUS * replicas[0].engine.shape.context_power_w * span_s
    j_per_token = energy_j / sum(each.output_tokens for each in requests)
    ttft_s, tpot_s = [each.ttft_s for each in requests], [each.tpot_s for each in requests]
    return {
        "j_per_token": j_per_token,
        "g_per_token": j_per_token / 3.6e6 * INTENSITY_G_PER_KWH,
        "ttft_p50_s": float(np.percentile(ttft_s, 50)),
        "ttft_p99_s": float(np.percentile(ttft_s, 99)),
        "tpot_p50_s": float(np.percentile(tpot_s, 50)),
        "tpot_p99_s": float(np.percentile(tpot_s, 99)),
        "attainment": sum(each.keeps(limits) for each in requests) / len(requests),
        "gpus": sum(replica.active_j > 0 for replica in replicas),
        "lost": sum(not each.ended_s for each in requests),
    }


def always(choose: Choose) -> Callable[[Window], Choose]:
    """Return a choice that needs to know nothing of its window."""
    return lambda _: choose


def policies(window: Window, limits: Limits) -> dict[str, Setup]:
    """Return every policy, with what it chooses on a window."""
    full = fixed(CLOCKS[-1])

    def least(setups: Sequence[Setup]) -> Setup:
        """Return the one of least energy that keeps the objective, or else is closest to it."""

        def rank(setup: Setup) -> tuple[float, float]:
            found = run(window, limits, setup)
            return -min(found["attainment"], CHOSEN_ATTAINMENT), found["j_per_token"]

        return min(setups, key=rank)

    chunk = least([Setup(GPUS, each, full, always(least_requests)) for each in CHUNKS]).chunk
    static = Setup(GPUS, chunk, full, always(least_requests))
    setups = {
        "round robin": replace(static, choose=always(round_robin)),
        "least requests": static,
    }
    if any(each.blocks for each in window):
        setups["prefix"] = replace(static, choose=lambda requests: ByPrefix(requests, GPUS))
    setups["power cap"] = least([
        replace(static, clock_at=capped(power_w), chosen=f"{power_w} W") for power_w in CAPS_W
    ])  # fmt: skip
    gpus, clock = planned(window, limits)
    setups["plan"] = replace(static, gpus=gpus, clock_at=fixed(clock), chosen=f"{gpus} at {clock}")
    ratio = sum(r.input_tokens for r in window) / sum(r.output_tokens for r in window)
    together = []
    for size, headroom in product(CHUNKS, HEADROOMS):
        policy = Consolidated(limits, headroom, ratio)
        said = f"headroom {headroom}, chunks {size}"
        together.append(Setup(GPUS, size, policy.clock_at, always(policy), said))
    setups["consolidated"] = least(together)
    setups["consolidated, highest clock"] = replace(setups["consolidated"], clock_at=full)
    setups["router, highest clock"] = replace(
        setups["consolidated, highest clock"],
        choose=lambda requests: AsRouter(requests, GPUS, limits),
        chosen=f"headroom {HEADROOM}",
    )
    setups["router, highest clock, cache not stated"] = replace(
        setups["router, highest clock"],
        choose=lambda requests: AsRouter(requests, GPUS, limits, kv_stated=False),
    )
    setups["router, plan's clock"] = replace(
        setups["router, highest clock"],
        clock_at=fixed(clock),
        chosen=f"headroom {HEADROOM}, at {clock}",
    )
    return setups


def planned(window: Window, limits: Limits) -> tuple[int, float]:
    """Return the replicas and the clock that the planner's catalog gives for the busiest minute.

    The busiest minute is that of most work, not of most requests: tokens of prompts count what they
    take beside a token of an answer.
    """
    inputs, outputs = lengths(window)
    work = inputs / PROMPT_TOKENS_PER_STEP + outputs
    busiest = np.bincount([int(each.arrived_s // _MINUTE_S) for each in window], work).max()
    return plan_of(inputs, outputs, busiest / _MINUTE_S / work.mean(), limits)


def lengths(window: Collection[Request]) -> tuple[Tokens, Tokens]:
    """Return the tokens of prompts and of answers."""
    return (
        np.array([each.input_tokens for each in window]),
        np.array([each.output_tokens for each in window]),
    )


def plan_of(
    inputs: Tokens,
    outputs: Tokens,
    load_rps: float,
    limits: Limits,
    *,
    bursts: Dispersion | None = None,
) -> tuple[int, float]:
    """Return the replicas and the clock that the planner's catalog gives for a load.

    A prompt longer than 99 in 100 must keep its objective too.

    Args:
        inputs: Tokens of prompts that were seen.
        outputs: Tokens of answers that were seen.
        load_rps: Load to plan for, req/s.
        limits: Objectives.
        bursts: Burstiness of the load, as the planner counts it; None: `max_utilisation` alone.
    """
    usual = PROFILE.changed(
        prompt_tokens=float(inputs.mean()),
        answer_tokens=float(outputs.mean()),
        long_prompt_tokens=float(np.percentile(inputs, 99)),
    )
    model = Model(
        "text", 1e4, 99.0, load_rps, (Variant("8b", 1.0, usual),),
        slo_first_token_s=limits.ttft_s, slo_token_s=limits.tpot_s, dispersion=bursts or POISSON,
    )  # fmt: skip
    objective = Objective()
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    kinds = catalog.build([model], [_WHOLE_GPUS], objective, sizes, 1, clock_ratios=CLOCKS)
    found = []
    for kind in kinds:
        usable_rps = objective.max_utilisation * kind.throughput_rps
        if bursts:
            usable_rps = admissible_rps(objective, model, kind)
        if usable_rps > 0:
            needed = load_rps / usable_rps
            gpus = min(math.ceil(needed - _ROUNDING_RPS), GPUS)
            idle_w = gpus * (POOL.type.context_power_w - POOL.type.idle_power_w)
            power_w = load_rps * kind.energy_j + (idle_w if bursts else 0.0)
            missing = max(needed - GPUS, 0.0)  # of too few GPUs, as much as they can do comes first
            clock = kind.clock_mhz / POOL.type.max_clock_mhz or 1.0
            found.append((missing, power_w, gpus, clock))
    if not found:
        return GPUS, 1.0
    _, _, gpus, clock = min(found)
    return gpus, min(CLOCKS, key=lambda c: abs(c - clock))
