"""Nodes that no service reaches: routers' losses together with an agent's silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import grpc
import pytest

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.kit import config
from services.kit.backoff import Backoff
from services.planner.core import unreached
from tests.support.fake_agent import (
    Agent,
    Grid,
    active,
    deployment,
    living,
    planner,
    reconciler,
    watch,
)
from tests.support.planner.planner_client import Router, connected, known_routers, plan, refused
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

HOUR_S = 3600.0


def slow_to_give_up(folder: Path, grid: Grid) -> config.Deployment:
    """Two nodes; all waiting times are an hour, so that a test that waits for one fails."""
    found = deployment(folder, grid.port, nodes=("node-a", "node-b"))
    triggers = found.planner.triggers.model_copy(update={"min_interval_s": HOUR_S})
    nodes = {
        name: node.model_copy(update={"orphan_timeout_s": 6 * HOUR_S})
        for name, node in found.nodes.items()
    }
    planner = found.planner.model_copy(update={"triggers": triggers})
    return found.model_copy(update={"nodes": nodes, "planner": planner})


@asynccontextmanager
async def saying(
    stub: PlannerServiceAsyncStub, router_id: str, unreachable: Callable[[], list[str]]
) -> AsyncIterator[None]:
    """Run a router that reports five times a second what it cannot reach."""
    router = Router(stub, router_id)

    async def repeat() -> None:
        while True:
            router.say(0, window_s=0.2, unreachable=unreachable())
            await asyncio.sleep(0.2)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        router.call.cancel()


@asynccontextmanager
async def speaking(agent: Agent) -> AsyncIterator[None]:
    """Report an agent's meters five times a second."""

    async def repeat() -> None:
        while True:
            agent.meter(0.0)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()


def on_node(name: str) -> Callable[[planner_pb2.WatchResponse], bool]:
    """Return whether the active plan has segments, all on a node."""
    return lambda seen: (
        seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE
        and {each.node for each in seen.plan.segments} == {name}
    )


async def test_a_silent_node_that_no_router_reaches_is_replaced_at_once(
    tmp_path: Path, grid: Grid
) -> None:
    """Its stream is open as ever; once it speaks it joins again, and no GPU has two owners."""
    a, b = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
    async with planner(slow_to_give_up(tmp_path, grid)) as stub, living(a, stub) as stream:
        await active(stub, 1)
        async with living(b, stub), saying(stub, "r-1", lambda: list(a.segments)):
            await connected(stub, "node-b")
            after = await watch(stub, on_node("node-b"))
            error = await refused(stream)
            async with living(a, stub):
                await connected(stub, "node-a")
                fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())

    assert "fleet: node-a 1 x a100-40gb -> away" in after.plan.reason
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    owned = [(gpu.uuid, each.node.name) for each in fleet.nodes for gpu in each.node.gpus]
    assert sorted(owned) == [("GPU-1", "node-a"), ("GPU-2", "node-b")]
    ids = [each.spec.segment_id for node in fleet.nodes for each in node.node.segments]
    assert len(ids) == len(set(ids))


async def test_a_silent_agent_is_named_while_its_stream_is_open(tmp_path: Path, grid: Grid) -> None:
    """A process that is stopped keeps its connection; keepalive ends that much later."""
    a = Agent("node-a", ("GPU-1",))
    away = "node/node-a"
    async with planner(slow_to_give_up(tmp_path, grid)) as stub, living(a, stub):
        await active(stub, 1)
        async with speaking(a):
            await watch(stub, lambda seen: away not in {each.subject for each in seen.conditions})
            await asyncio.sleep(3.0)
        await watch(stub, lambda seen: away in {each.subject for each in seen.conditions})
        async with speaking(a):
            await watch(stub, lambda seen: away not in {each.subject for each in seen.conditions})


@pytest.mark.parametrize("sign", ["another router reaches it", "its agent speaks"])
async def test_a_node_that_shows_any_sign_of_life_keeps_its_place(
    tmp_path: Path, grid: Grid, sign: str
) -> None:
    """One router that is cut off, or workers that all crashed, are no lost machine."""
    a, b = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
    async with planner(slow_to_give_up(tmp_path, grid)) as stub, living(a, stub):
        await active(stub, 1)
        async with (
            speaking(a) if sign == "its agent speaks" else nullcontext(),
            living(b, stub),
            saying(stub, "r-2", lambda: [] if "router" in sign else list(a.segments)),
            saying(stub, "r-1", lambda: list(a.segments)),
        ):
            await connected(stub, "node-b")
            await until(lambda: known_routers(stub) == {"r-1", "r-2"})
            await asyncio.sleep(3.0)
            newest = await plan(stub)

    assert newest.version == 1


async def test_a_planner_that_takes_over_does_not_wait_for_a_lost_node_of_the_stored_plan(
    tmp_path: Path, grid: Grid
) -> None:
    """The machine died together with the planner that led: routers know, and another is free."""
    settings = slow_to_give_up(tmp_path, grid)
    a, b = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
    async with planner(settings) as stub, living(a, stub):
        await active(stub, 1)
    async with (
        planner(settings) as stub,
        living(b, stub),
        saying(stub, "r-1", lambda: list(a.segments)),
    ):
        await watch(stub, on_node("node-b"))


async def test_a_node_that_joins_ends_the_wait_after_a_failure(tmp_path: Path, grid: Grid) -> None:
    """Attempts that failed again and again wait for long; a free machine does not."""
    settings = slow_to_give_up(tmp_path, grid)
    a = Agent("node-a", ("GPU-1",), refuse=lambda _: "the driver is broken")
    async with planner(settings) as stub:
        reconciler(stub).cycle._backoff = Backoff(HOUR_S, HOUR_S, rng=Random(1))
        async with living(a, stub):
            await until(lambda: len(a.orders) == 1)
            b = Agent("node-b", ("GPU-2",))
            async with living(b, stub):
                await until(lambda: len(a.orders) + len(b.orders) > 1)


async def test_workers_that_no_router_reaches_are_replaced_on_another_node(
    tmp_path: Path, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their agent speaks and reports them as serving; it stops them once others serve."""
    monkeypatch.setattr(unreached, "_PATIENCE_S", 0.5)
    a, b = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
    async with planner(slow_to_give_up(tmp_path, grid)) as stub, living(a, stub):
        await active(stub, 1)
        lost = list(a.segments)
        async with speaking(a), living(b, stub), saying(stub, "r-1", lambda: lost):
            after = await watch(stub, on_node("node-b"))
            await until(lambda: not a.segments)
            assert not after.plan.degraded


async def test_a_plan_that_cannot_reach_a_free_node_is_made_again_without_it(
    tmp_path: Path, grid: Grid
) -> None:
    """The stream of a machine that died stays open; its agent sent its meters until then."""
    a, b = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
    a.gate.clear()
    async with planner(slow_to_give_up(tmp_path, grid)) as stub, living(a, stub):
        for _ in range(3):
            a.meter(0.0)
            await asyncio.sleep(0.1)
        await until(lambda: len(a.orders) == 1)
        async with living(b, stub):
            after = await watch(stub, on_node("node-b"))

    assert "node-a went away" in after.plan.reason
