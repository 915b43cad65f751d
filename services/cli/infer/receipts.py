"""Follows the receipts of answers, of all processes of the router together."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Final, cast

import typer

from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from services.cli.client import explaining
from services.cli.console.output import as_line
from services.cli.console.quantities import carbon, metered, milliseconds
from services.kit.config import Deployment
from services.kit.config.loader import load
from services.kit.errors import leaves
from services.kit.plurals import counted
from services.kit.rpc import dial

_SILENT_S = 4.0
"""Time without a receipt after which a line says why, s."""

_CONNECTIONS: Final = 3
"""Per process of the router: the kernel gives each connection to any of them."""

_Stream = AsyncGenerator[router_pb2.WatchReceiptsResponse, None]


async def follow(
    config: Path, request: router_pb2.WatchReceiptsRequest, *, as_json: bool, count: int | None
) -> None:
    """Print receipts as they come, a line each.

    Args:
        config: The deployment file.
        request: Which receipts.
        as_json: A line of JSON each.
        count: How many; None: until the router ends.

    Raises:
        ServiceError: The router refuses, or does not answer.
    """
    printed, silent_until_s = 0, time.monotonic() + _SILENT_S
    async with aclosing(received(load(config), request)) as found:
        async for responses in found:
            for receipt in (each for response in responses for each in response.receipts):
                typer.echo(as_line(receipt) if as_json else _line(receipt))
                printed += 1
                if printed == count:
                    return
            if not printed and time.monotonic() > silent_until_s:
                silent_until_s = math.inf
                typer.echo(
                    "No request has been answered yet: `cinquefoil load` sends some.", err=True
                )


async def received(
    deployment: Deployment, request: router_pb2.WatchReceiptsRequest
) -> AsyncGenerator[list[router_pb2.WatchReceiptsResponse], None]:
    """Yield the responses of all processes of the router, round by round, until one ends.

    Raises:
        ServiceError: The router refuses, or does not answer.
    """
    processes = deployment.router.processes
    tries = 1 if processes == 1 else _CONNECTIONS * processes
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(_opened(deployment, request)) for _ in range(tries)
        ]
        answers = await _round(opened)
        by_process = dict(zip((each.router_id for each in answers), opened, strict=False))
        for stream in opened:
            if stream not in by_process.values():
                await stream.aclose()
        while answers:
            yield list({each.router_id: each for each in answers}.values())
            answers = await _round(list(by_process.values()))


def _opened(
    deployment: Deployment, request: router_pb2.WatchReceiptsRequest
) -> "aclosing[_Stream]":
    """Return a stream over a connection of its own."""

    async def messages() -> AsyncIterator[router_pb2.WatchReceiptsResponse]:
        address = deployment.router.dial
        async with dial(
            address, deployment.identity("operator"), deployment.expected("router")
        ) as channel:
            secured = deployment.tls is not None
            stub: Any = explaining(RouterServiceStub(channel), "router", address, secured=secured)
            async for message in stub.WatchReceipts(request, timeout=None):
                yield message

    return aclosing(cast(_Stream, messages()))


async def _round(streams: list[_Stream]) -> list[router_pb2.WatchReceiptsResponse]:
    """Return the next response of each stream; empty: one has ended."""
    try:
        async with asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(_next(each), name="receipts") for each in streams]
    except ExceptionGroup as group:
        raise next(leaves(group)) from group
    found = [each.result() for each in reads]
    return [] if None in found else [each for each in found if each is not None]


async def _next(stream: _Stream) -> router_pb2.WatchReceiptsResponse | None:
    return await anext(stream, None)


def _line(receipt: router_pb2.Receipt) -> str:
    facts = [f"waited {milliseconds(receipt.queue_s)}"]
    if receipt.HasField("energy_j"):
        facts.append(metered(receipt.energy_j, receipt.energy_method))
    if receipt.HasField("carbon_gco2e"):
        facts.append(carbon(receipt.carbon_gco2e))
    if receipt.output_tokens:
        facts.append(f"{counted(receipt.output_tokens, 'token')}")
    return (
        f"{receipt.answered_at.ToDatetime():%H:%M:%S.%f} {receipt.model}/{receipt.variant} "
        f"in {milliseconds(receipt.latency_s)}: {', '.join(facts)}"
    )
