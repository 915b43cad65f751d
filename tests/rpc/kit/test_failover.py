"""A channel to several servers leads to the one that serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.carbon.v1.carbon_pb2_grpc import (
    CarbonServiceServicer,
    CarbonServiceStub,
    add_CarbonServiceServicer_to_server,
)
from services.kit.clock import RealClock
from services.kit.net import free_port
from services.kit.rpc import Serving, dial, serving
from services.kit.rpc.reconnect import Reconnector


class Named(CarbonServiceServicer):
    """Answers with its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def ListZones(self, request: Any, context: Any) -> carbon_pb2.ListZonesResponse:
        return carbon_pb2.ListZonesResponse(zones=[self._name])


class Impatient(RealClock):
    """A clock whose pauses never end."""

    def __init__(self) -> None:
        self.waits, self.waiting = 0, asyncio.Event()

    async def sleep(self, delay_s: float) -> None:
        self.waits += 1
        self.waiting.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def named(name: str, port: int, *, ready: bool = True) -> AsyncIterator[Serving]:
    """Serve while the block runs."""
    async with serving(
        f"127.0.0.1:{port}",
        lambda server: add_CarbonServiceServicer_to_server(Named(name), server),  # type: ignore[abstract]
        ["cinquefoil.carbon.v1.CarbonService"],
        grace_s=0,
        ready=ready,
    ) as server:
        yield server


async def answers(channel: grpc.aio.Channel, name: str) -> None:
    """Wait until the server of a name answers."""
    async with asyncio.timeout(45):
        while True:
            try:
                request = carbon_pb2.ListZonesRequest()
                found = await CarbonServiceStub(channel).ListZones(request)
                if list(found.zones) == [name]:
                    return
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(0.02)


async def test_the_first_call_goes_to_the_server_that_serves() -> None:
    """One address has no server, another's server is not ready."""
    ports = [free_port() for _ in range(3)]
    async with (
        named("waits", ports[1], ready=False),
        named("serves", ports[2]),
        dial([f"127.0.0.1:{port}" for port in ports]) as channel,
    ):
        found = await CarbonServiceStub(channel).ListZones(carbon_pb2.ListZonesRequest())

    assert list(found.zones) == ["serves"]


async def test_calls_follow_the_server_that_serves_and_stay_there() -> None:
    ports = [free_port() for _ in range(2)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    async with named("b", ports[1], ready=False) as standby, dial(addresses) as channel:
        async with named("a", ports[0]):
            await answers(channel, "a")
        await standby.set_ready(ready=True)
        await answers(channel, "b")
        async with named("a", ports[0]):
            for _ in range(10):
                await answers(channel, "b")


async def test_where_none_serves_a_call_ends_at_once() -> None:
    async with dial([f"127.0.0.1:{free_port()}" for _ in range(2)]) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await CarbonServiceStub(channel).ListZones(carbon_pb2.ListZonesRequest(), timeout=5)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_who_waits_before_the_next_attempt_makes_it_once_a_server_begins_to_serve() -> None:
    """A fleet finds the next leader as soon as it leads, however long the pauses have become."""
    ports = [free_port() for _ in range(2)]
    clock, tries = Impatient(), []
    async with (
        named("b", ports[1], ready=False) as standby,
        dial([f"127.0.0.1:{port}" for port in ports]) as channel,
    ):

        async def session() -> None:
            tries.append(clock.waits)
            found = await CarbonServiceStub(channel).ListZones(carbon_pb2.ListZonesRequest())
            assert list(found.zones) == ["b"]
            trying.cancel()
            await asyncio.Event().wait()

        trying = asyncio.create_task(Reconnector("b", clock, channel=channel).run(session))
        await clock.waiting.wait()
        await standby.set_ready(ready=True)
        async with asyncio.timeout(45):
            await asyncio.wait({trying})

    assert tries == [0, 1]
