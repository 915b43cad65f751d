"""Agents and planners between real gRPC peers, for the tests of this folder about either."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.fake_agent import Agent, Grid, Suite, carbon, deployment, living, planner
from tests.support.gpuagent import agent_service
from tests.support.postgres import Postgres, running
from tests.support.worker.worker_process import save_model


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


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model for all tests of this folder: none changes its file."""
    return save_model(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture
async def node(
    tmp_path: Path, model: Path
) -> AsyncIterator[tuple[agent_service.Planner, agent_service.Agent]]:
    """An agent that has reported its GPUs to its planner."""
    async with (
        agent_service.planning() as (planner, port),
        agent_service.agent(
            agent_service.deployment(tmp_path, model, f"127.0.0.1:{port}")
        ) as running,
    ):
        await planner.until(lambda: len(planner.node.gpus) > 0)
        yield planner, running
