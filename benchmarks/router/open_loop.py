"""A client that does not wait: requests come as a Poisson process, whatever becomes of them."""

import asyncio
import time
from typing import Any, NamedTuple

import grpc

from benchmarks.router import messages
from services.cli.load.open_loop import send_each
from services.cli.load.profile import due_times_s
from services.kit.clock import RealClock

CHANNELS = 8


class Outcome(NamedTuple):
    """Fate of a request.

    Attributes:
        sent_s: Time of its sending, from the start of the load.
        latency_s: Until its end.
        status: "OK", "WRONG", or the name of its gRPC status.
    """

    sent_s: float
    latency_s: float
    status: str


async def poisson(
    port: int, rate_rps: float, duration_s: float, timeout_s: float, seed: int = 0
) -> list[Outcome]:
    """Send requests, and wait for the end of all.

    Args:
        port: The server's port.
        rate_rps: Mean rate.
        duration_s: For how long to send.
        timeout_s: Each request's deadline.
        seed: Of the arrivals.
    """
    outcomes: list[Outcome] = []
    channels = [messages.channel(port) for _ in range(CHANNELS)]
    calls = [messages.infer(channel) for channel in channels]
    begin_s = time.monotonic()

    async def send(number: int, _: float) -> None:
        call, name = calls[number % CHANNELS], f"{seed}-{number}"
        await _send(call, name, begin_s, timeout_s, outcomes)

    due_s = due_times_s("constant", rate_rps, duration_s, seed).tolist()
    try:
        await send_each(due_s, send, RealClock())
    finally:
        for channel in channels:
            await channel.close()
    return outcomes


async def _send(
    call: Any, name: str, begin_s: float, timeout_s: float, outcomes: list[Outcome]
) -> None:
    sent_s = time.monotonic()
    try:
        answer = await call(messages.request("small", name), timeout=timeout_s)
        status = "WRONG" if messages.wrong(answer, receipt=True, name=name) else "OK"
    except grpc.aio.AioRpcError as error:
        status = error.code().name
    outcomes.append(Outcome(sent_s - begin_s, time.monotonic() - sent_s, status))


async def closed(port: int, in_flight: int, duration_s: float) -> float:
    """Keep so many requests in flight; return answers per second after a fifth of the time."""
    answered: list[float] = []
    begin_s = time.perf_counter()

    async def send_in_turn(call: Any) -> None:
        while (now_s := time.perf_counter() - begin_s) < duration_s:
            await call(messages.request("small"))
            answered.append(now_s)

    async with messages.channel(port) as channel, asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(send_in_turn(messages.infer(channel)), name="open_loop.closed")
    warm_s = duration_s / 5
    return sum(at >= warm_s for at in answered) / (duration_s - warm_s)
