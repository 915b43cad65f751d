"""A planner to be questioned, and whether questions changed anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.kit import config
from tests.support.fake_agent import Agent, Grid, Suite, deployment, living, planner

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub


@asynccontextmanager
async def calm(folder: Path, grid: Grid) -> AsyncIterator[Suite]:
    """Run a planner that re-plans only on request: reports in flight give no reason to."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    rarely = config.Triggers(min_interval_s=60.0, settle_s=0.3)
    settings = deployment(folder, grid.port, triggers=rarely)
    async with planner(settings) as stub, living(agent, stub):
        yield Suite(stub, grid, agent)


async def dry_run(suite: Suite, **what_if: object) -> planner_pb2.DryRunResponse:
    """Return the plan that the planner would make under other circumstances."""
    request = planner_pb2.DryRunRequest(what_if=planner_pb2.WhatIf(**what_if))  # type: ignore[arg-type]  # fields by name
    return await suite.stub.DryRun(request)


async def error_of(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def applied(suite: Suite, proposal_id: str) -> plan_pb2.Plan:
    return (await suite.stub.Apply(planner_pb2.ApplyRequest(proposal_id=proposal_id))).plan


async def listed(stub: PlannerServiceAsyncStub) -> planner_pb2.ListPlansResponse:
    return await stub.ListPlans(planner_pb2.ListPlansRequest())


class Untouched:
    """Asserts that a block changed nothing: no plan, no step, no pin, no objective."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite

    async def __aenter__(self) -> None:
        self._before = await self._state()

    async def __aexit__(self, *error: object) -> None:
        for _ in range(3):  # what was begun in the background has had its turns
            assert await self._state() == self._before

    async def _state(self) -> tuple[list[tuple[int, int]], int, int, dict[str, float]]:
        found = await listed(self._suite.stub)
        fleet = await self._suite.stub.GetFleet(planner_pb2.GetFleetRequest())
        return (
            [(each.version, each.state) for each in found.plans],
            found.pinned_version,
            len(self._suite.agent.steps),
            {**fleet.demand_rps, **fleet.intensity_gco2e_per_kwh},
        )
