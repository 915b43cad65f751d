"""A planner between real gRPC peers, for the tests of this folder that are about planners."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.postgres import Postgres, running
from tests.rpc.planner_world import Agent, Grid, Suite, carbon, deployment, living, planner


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL for all tests of this folder."""
    with running() as server:
        yield server


@pytest.fixture
async def grid() -> AsyncIterator[Grid]:
    """A carbon service of one zone."""
    async with carbon() as serving:
        yield serving


@pytest.fixture
async def suite(tmp_path: Path, grid: Grid) -> AsyncIterator[Suite]:
    """A planner whose one node of two A100s has joined."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(deployment(tmp_path, grid.port)) as stub, living(agent, stub):
        yield Suite(stub, grid, agent)
