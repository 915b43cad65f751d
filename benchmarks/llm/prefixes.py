"""The router's choice "prefix" on requests whose prompts begin alike where the trace's do.

python -m benchmarks.llm --part prefixes [--json FILE] [--quick]

Four H100 at their highest clock cache the blocks of prompts, those used least recently forgotten
first. What a byte counts that an instance holds is chosen on the first window of Mooncake's trace,
by the active energy per token with 99.5 % of requests in time; the windows after it are reported,
each with empty caches at its begin. "Most" is what one cache reuses that all share and that forgets
nothing: no choice of instances reuses more.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.harness import Figures, Report, in_processes
from benchmarks.llm.engine import (
    CHOSEN_ATTAINMENT,
    CLOCKS,
    SLOTS,
    Choose,
    Engine,
    Limits,
    Request,
    gpu,
    least_requests,
    round_robin,
    serve,
)
from benchmarks.llm.traces import Trace, traces
from inference import grpc_service_pb2 as oip
from services.router.core.balancing.instance_choice import HELD_WEIGHT, by_prefix
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance
from services.router.core.model import Request as RouterRequest
from services.router.core.pending_request import PendingRequest
from services.router.core.prefix_cache import PrefixCache
from services.simulator.continuous_batching import BLOCK_TOKENS, Replica

TEXT_BYTES: Final = 4  # of a token
CACHES: Final = {"GPU memory": 800, "with host memory": 8000}
"""Blocks that a replica caches: 128 KiB a token (Llama 3 8B, 16 bit) in 52 GB, and ten times it."""

WEIGHTS: Final = (1.0, 0.5, 0.25, 0.1, 0.03)
REPLICAS: Final = 4
WINDOWS: Final = 4


class ByPrefix:
    """The router's choice "prefix".

    Args:
        trace: The requests, in order.
        replicas: Number of replicas.
        held_weight: Weight of a byte that an instance holds.

    Attributes:
        spent_s: Processor time of this machine that the choice took.
    """

    def __init__(
        self, trace: Sequence[Request], replicas: int, held_weight: float = HELD_WEIGHT
    ) -> None:
        self._trace = trace
        self._held_weight = held_weight
        self._states = [
            InstanceState(Instance(f"{i}:1", str(i), "text", "8b", 1.0, 1.0, SLOTS))
            for i in range(replicas)
        ]
        self.spent_s = 0.0

    def __call__(self, replicas: Sequence[Replica], request: Request, number: int) -> Replica:
        """Return the replica of the next request."""
        for state in self._states:
            for each in [each for each in state.in_flight if self._trace[each].ended_s]:
                state.release(each)
        pending = PendingRequest(RouterRequest(number, "text", body_of(request), 0.0, math.inf))
        begun_s = time.process_time()
        chosen = by_prefix(self._states, pending, self._held_weight)
        chosen.prefixes.add(pending.prefix())
        self.spent_s += time.process_time() - begun_s
        chosen.hold(pending, counted=True)
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


def reuse(
    window: Sequence[Request],
    limits: Limits,
    blocks: int,
    choose: Callable[[Sequence[Request]], Choose],
) -> dict[str, Any]:
    """Return what replicas need not compute that cache so many blocks each.

    Args:
        window: The requests.
        limits: Their objective.
        blocks: Blocks that a replica caches.
        choose: Returns how replicas are chosen for a window.
    """
    requests = [replace(request) for request in window]
    replicas = [
        gpu(Engine(), lambda _, __: CLOCKS[-1], cache=PrefixCache(blocks)) for _ in range(REPLICAS)
    ]
    by = choose(requests)
    serve(requests, replicas, by)
    active_j = [replica.active_j for replica in replicas]
    return {
        "reused": sum(each.cached for each in replicas) / sum(r.input_tokens for r in requests),
        "busiest_over_mean": max(active_j) / (sum(active_j) / REPLICAS),
        "active_j_per_token": sum(active_j) / sum(r.output_tokens for r in requests),
        "ttft_p50_s": float(np.percentile([r.ttft_s for r in requests], 50)),
        "ttft_p99_s": float(np.percentile([r.ttft_s for r in requests], 99)),
        "attainment": sum(r.keeps(limits) for r in requests) / len(requests),
        "choice_us": by.spent_s / len(requests) * 1e6 if isinstance(by, ByPrefix) else 0.0,
    }  # fmt: skip


def by_weight(weight: float) -> Callable[[Sequence[Request]], Choose]:
    """Return "prefix" with a weight of the bytes held."""
    return lambda requests: ByPrefix(requests, REPLICAS, weight)


def most_reused(window: Sequence[Request]) -> float:
    """Return the share of the prompts' tokens that one cache need not compute."""
    cache, reused = PrefixCache(sum(len(each.blocks) for each in window)), 0
    for each in window:
        reused += min(cache.matched(each.blocks) * BLOCK_TOKENS, each.input_tokens - 1)
        cache.add(each.blocks)
    return reused / sum(each.input_tokens for each in window)


def study(job: tuple[str, float, int]) -> dict[str, Any]:
    """Return the weights on the first window, and the rows of a cache on the others.

    Args:
        job: Name of the cache, the share of the usual span of windows, and how many there are.
    """
    cache, scale, windows = job
    trace = _trace(scale, windows)
    found = partial(reuse, limits=trace.limits, blocks=CACHES[cache])
    weights = [
        {"cache": cache, "held_weight": weight} | found(trace.windows[0], choose=by_weight(weight))
        for weight in WEIGHTS
    ]
    choices = {
        "round robin": lambda _: round_robin,
        "least requests": lambda _: least_requests,
        "prefix": by_weight(HELD_WEIGHT),
    }
    reported = trace.windows[1:]
    rows = [
        {"cache": cache, "choice": name, "most": float(np.mean([*map(most_reused, reported)]))}
        | _mean([found(window, choose=choose) for window in reported])
        for name, choose in choices.items()
    ]
    return {"weights": weights, "rows": rows}


def _trace(scale: float, windows: int) -> Trace:
    return traces(2 * scale, windows)[1]


def _mean(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: float(np.mean([each[key] for each in found])) for key in found[0]}


def measure(*, quick: bool) -> Report:
    """Choose the weight, and compare the choices."""
    scale, windows = (0.2, 2) if quick else (1.0, WINDOWS)
    found = in_processes(study, [(cache, scale, windows) for cache in CACHES])
    weights = [row for each in found.values() for row in each["weights"]]
    rows = [row for each in found.values() for row in each["rows"]]
    large = [row for row in weights if row["cache"] == "with host memory"]
    kept = [row for row in large if row["attainment"] >= CHOSEN_ATTAINMENT]
    best = min(kept or large, key=lambda row: row["active_j_per_token"])["held_weight"]
    chosen = f"Least energy in time, with host memory: {best}; the router's: {HELD_WEIGHT}"
    return Report(
        [
            Figures("What a byte held counts, first window of Mooncake x 0.5", weights, chosen),
            Figures(f"{REPLICAS} H100 that cache prefixes, {windows - 1} windows after it", rows),
        ],
        {"prefixes": rows, "prefix_weights": weights},
    )
