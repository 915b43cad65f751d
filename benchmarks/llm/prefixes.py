"""The router's choice "prefix" on requests whose prompts begin alike where the trace's do."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from benchmarks.llm.engine import (
    CLOCKS,
    SLOTS,
    Choose,
    Engine,
    Limits,
    Request,
    gpu,
    serve,
)
from inference import grpc_service_pb2 as oip
from services.router.core.balancing.instance_choice import by_prefix
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance
from services.router.core.model import Request as RouterRequest
from services.router.core.pending_request import PendingRequest
from services.router.core.prefix_cache import PrefixCache
from services.simulator.continuous_batching import BLOCK_TOKENS, Replica

TEXT_BYTES: Final = 4  # of a token
CACHES: Final = {"GPU memory": 800, "with host memory": 8000}
"""Blocks that a replica caches: 128 KiB a token (Llama 3 8B, 16 bit) in 52 GB, and ten times it."""


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

    def __call__(self, replicas: Sequence[Replica], request: Request, number: int) -> Replica:
        """Return the replica of the next request."""
        for state in self._states:
            for each in [each for each in state.in_flight if self._trace[each].ended_s]:
                state.release(each)
        pending = PendingRequest(RouterRequest(number, "text", body_of(request), 0.0, math.inf))
        begun_s = time.perf_counter()
        chosen = by_prefix(self._states, pending)
        chosen.prefixes.add(pending.prefix())
        self.spent_s += time.perf_counter() - begun_s
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
    trace: Sequence[Request], limits: Limits, choices: Mapping[str, Choose], gpus: int
) -> list[dict[str, Any]]:
    """Return, by size of cache and choice, what replicas that cache prefixes need not compute."""
    rows = []
    for (memory, blocks), choice in product(CACHES.items(), (*choices, "prefix")):
        requests = [replace(request) for request in trace]
        replicas = [
            gpu(Engine(), lambda _, __: CLOCKS[-1], cache=PrefixCache(blocks)) for _ in range(gpus)
        ]
        by = ByPrefix(requests, gpus)
        serve(requests, replicas, choices.get(choice, by))
        active_j = [replica.active_j for replica in replicas]
        rows.append({
            "cache": memory,
            "choice": choice,
            "reused": sum(each.cached for each in replicas) / sum(r.input_tokens for r in requests),
            "busiest_over_mean": max(active_j) / (sum(active_j) / gpus),
            "active_j_per_token": sum(active_j) / sum(r.output_tokens for r in requests),
            "ttft_p50_s": float(np.percentile([r.ttft_s for r in requests], 50)),
            "ttft_p99_s": float(np.percentile([r.ttft_s for r in requests], 99)),
            "attainment": sum(r.keeps(limits) for r in requests) / len(requests),
            "choice_us": by.spent_s / len(requests) * 1e6,
        })  # fmt: skip
    return rows
