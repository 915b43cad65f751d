"""Honest callers beside an attack, in a process of their own: two clients and an operator.

    python -m benchmarks.attacks.honest CONFIG MODELS TOKEN

Each call is a line on stdout: caller, "answered" or what was wrong, latency in s. A client looks at
every answer and its receipt. The operator reads the fleet.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Final

import grpc
import uvloop

from benchmarks.chaos.suite import Digits
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Tls
from services.kit.config.loader import load
from services.kit.rpc import dial

_TIMEOUT_S: Final = 5.0
_CLIENT_RPS: Final = 25.0
_OPERATOR_RPS: Final = 5.0
_MOST_J: Final = 1e5

Call = Callable[[int], Awaitable[str]]


async def paced(name: str, rps: float, call: Call) -> None:
    """Make calls at a pace, answered or not, and write a line about each."""

    async def one(number: int) -> None:
        began_s = time.monotonic()
        try:
            found = await call(number)
        except grpc.aio.AioRpcError as error:
            found = error.code().name
        print(name, found, f"{time.monotonic() - began_s:.4f}", flush=True)

    next_s = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in count():
            tasks.create_task(one(number))
            next_s = max(next_s + 1 / rps, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))


def infers(channel: grpc.aio.Channel, digits: Digits, token: str = "") -> Call:
    """Return the call of a client."""
    infer = GRPCInferenceServiceStub(channel).ModelInfer
    metadata = (("authorization", f"Bearer {token}"),) if token else ()

    async def call(number: int) -> str:
        answer = await infer(digits.request(number), timeout=_TIMEOUT_S, metadata=metadata)
        if not _may_be(answer.parameters["energy_j"].double_param):
            return "FALSE_RECEIPT"
        return digits.judge(answer)

    return call


def _may_be(energy_j: float) -> bool:
    return math.isfinite(energy_j) and 0 <= energy_j < _MOST_J


async def main(config: Path, models: Path, token: str) -> None:
    """Call until the process is ended."""
    found, digits = load(config), Digits(models)
    assert found.tls is not None
    anybody = Tls(ca_file=found.tls.of("router").ca_file)
    async with (
        dial(found.router.listen, found.tls.of("client", "victim")) as certified,
        dial(found.router.token_listen, anybody) as bearing,
        dial(found.planner.listen, found.identity("operator")) as operating,
        asyncio.TaskGroup() as tasks,
    ):
        planner = PlannerServiceStub(operating)

        async def look(_: int) -> str:
            await planner.GetFleet(planner_pb2.GetFleetRequest(), timeout=_TIMEOUT_S)
            return "answered"

        tasks.create_task(paced("certificate", _CLIENT_RPS, infers(certified, digits)))
        tasks.create_task(paced("token", _CLIENT_RPS, infers(bearing, digits, token)))
        tasks.create_task(paced("operator", _OPERATOR_RPS, look))


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
