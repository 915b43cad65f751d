"""Lies of a router: to the planner about its load, to workers about its work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import grpc

from benchmarks.attacks.lies.seen import seen
from benchmarks.attacks.target import Attack, Target
from cinquefoil.gpuagent.v1 import worker_pb2
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceStub
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.rpc import dial

_HOLD_S: Final = 1.5
_NAN: Final = float("nan")

Lie = Callable[[planner_pb2.ReportLoadRequest], None]
Make = Callable[[Target], worker_pb2.ExecuteRequest]


def reported(lie: Lie, router_id: str = "evil") -> Attack:
    """Return the attack that reports a load with something wrong, every 0.3 s."""

    async def attack(target: Target) -> str:
        name = router_id or (await target.router_status()).router_id
        request = planner_pb2.ReportLoadRequest(router_id=name)
        request.window.FromMilliseconds(300)
        load = request.models.add(model="digits", arrivals=3, answered=3)
        load.answered_by_variant["linear"] = 3
        lie(request)

        async def said() -> AsyncIterator[planner_pb2.ReportLoadRequest]:
            while True:
                yield request
                await asyncio.sleep(0.3)

        before = await seen(target)
        async with dial(target.planner, target.tls("router")) as channel:
            status = await _ended(PlannerServiceStub(channel).ReportLoad(said()), _HOLD_S)
        before.check(await seen(target))
        return status

    return attack


async def _ended(call: Any, hold_s: float) -> str:
    """Return how a call ended, or that it had no effect."""
    try:
        async with asyncio.timeout(hold_s):
            code: grpc.StatusCode = await call.code()
    except TimeoutError:
        call.cancel()
        return "clamped"
    return f"{code.name}: {await call.details()}"[:90]


def executed(make: Make, times: int = 20) -> Attack:
    """Return the attack that sends wrong work to the worker of node-0."""

    async def attack(target: Target) -> str:
        async def said() -> AsyncIterator[worker_pb2.ExecuteRequest]:
            request = make(target)
            for _ in range(times):
                yield request
            await asyncio.sleep(_HOLD_S)

        before, refused, ended = await seen(target), 0, ""
        async with dial(target.worker, target.tls("router")) as channel:
            try:
                async with asyncio.timeout(_HOLD_S):
                    async for answer in WorkerServiceStub(channel).Execute(said()):
                        refused += sum(bool(each.status) for each in answer.results)
            except grpc.aio.AioRpcError as error:
                ended = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                ended = "without effect"
        before.check(await seen(target))
        return f"{refused} refused; {ended}"[:90]

    return attack


def _load(**figures: float) -> Lie:
    def lie(request: planner_pb2.ReportLoadRequest) -> None:
        for name, value in figures.items():
            setattr(request.models[0], name, value)

    return lie


def _latency(value: float) -> Lie:
    def lie(request: planner_pb2.ReportLoadRequest) -> None:
        request.models[0].latency_s["95"] = value

    return lie


def _window(request: planner_pb2.ReportLoadRequest) -> None:
    request.window.seconds = -(2**40)


def _long_window(request: planner_pb2.ReportLoadRequest) -> None:
    request.window.FromSeconds(10**9)
    request.models[0].arrivals = 10**15


def _many_models(request: planner_pb2.ReportLoadRequest) -> None:
    for number in range(5000):
        request.models.add(model=f"m{number}", arrivals=10**6)


def _revision(request: planner_pb2.ReportLoadRequest) -> None:
    request.routing_revision = 2**64 - 1


def _variants(request: planner_pb2.ReportLoadRequest) -> None:
    for number in range(5000):
        request.models[0].answered_by_variant[f"\x1b[2J{number}"] = 2**64 - 1


def _as_it_is(_: planner_pb2.ReportLoadRequest) -> None:
    return


def _work(**how: Any) -> Make:
    def made(target: Target) -> worker_pb2.ExecuteRequest:
        request = target.digits.request(0).SerializeToString()
        work = worker_pb2.Work(id=1, request=request)
        for name, value in how.items():
            setattr(work, name, value)
        return worker_pb2.ExecuteRequest(work=[work])

    return made


def _beyond_credits(target: Target) -> worker_pb2.ExecuteRequest:
    request = target.digits.request(0).SerializeToString()
    return worker_pb2.ExecuteRequest(
        work=[worker_pb2.Work(id=each, request=request) for each in range(1, 5000)]
    )


def _cancelled(_: Target) -> worker_pb2.ExecuteRequest:
    return worker_pb2.ExecuteRequest(cancelled_ids=range(100_000))


def lies() -> Iterator[tuple[str, Attack]]:
    """Yield the lies of a router."""
    yield "load: 2^64 - 1 requests", reported(_load(arrivals=2**64 - 1, answered=2**64 - 1))
    yield "load: more than its window has time for", reported(_long_window)
    yield "window: negative", reported(_window)
    yield "latency: NaN", reported(_latency(_NAN))
    yield "latency: 1e300 s", reported(_latency(1e300))
    yield "tokens: 2^64 - 1", reported(_load(input_tokens=2**64 - 1, output_tokens=2**64 - 1))
    yield "models: 5,000 unknown", reported(_many_models)
    yield "variants: 5,000 unknown", reported(_variants)
    yield "revision: 2^64 - 1", reported(_revision)
    yield "name: none", reported(_as_it_is, " " * 1000)
    yield "name: that of the honest router, with 2^64 - 1", reported(_load(arrivals=2**64 - 1), "")
    yield "work: random bytes", executed(_work(request=bytes(range(200))))
    yield "work: the same id again", executed(_work())
    yield "work: 5,000 beyond its credits", executed(_beyond_credits, 4)
    yield "work: waited for 1e300 s", executed(_work(waited_s=1e300))
    yield "work: waited for NaN s", executed(_work(waited_s=_NAN))
    yield "work: waited for ever", executed(_work(waited_s=float("inf")))
    yield "work: NaN s left", executed(_work(remaining_s=_NAN))
    yield "work: 100,000 withdrawn that it has not sent", executed(_cancelled)
