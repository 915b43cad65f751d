"""Policies of models, by order: routers follow at once, and they hold over restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import structlog
import yaml
from typer.testing import CliRunner

from cinquefoil.planner.v1.planner_pb2 import SetPolicyRequest as Order
from services.cli.main import app
from services.kit.net import free_port
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner, watch

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub


async def served(stub: PlannerServiceAsyncStub) -> tuple[str, str]:
    """Return discipline and instance choice that routers are sent now."""
    (routes,) = (await watch(stub, lambda seen: bool(seen.routing.models))).routing.models
    return routes.discipline, routes.instance_choice


async def test_a_policy_is_sent_to_routers_and_holds_over_a_restart(
    tmp_path: Path, grid: Grid
) -> None:
    settings = deployment(tmp_path, grid.port)
    (model,) = settings.models
    agent = Agent("node-a", ("GPU-1",))
    async with planner(settings) as stub, living(agent, stub):
        before = (await active(stub, 1)).routing
        await stub.SetPolicy(Order(model=model, discipline="edf", intensity_threshold=1.5))
        after = (await watch(stub, lambda seen: seen.routing.revision > before.revision)).routing
    async with planner(settings) as stub, living(agent, stub):
        restarted = await served(stub)
        kept = await stub.SetPolicy(Order(model=model))
        request = Order(model=model, reset=True)
        reset = await stub.SetPolicy(request)

    assert [each.discipline for each in before.models] == ["fcfs"]
    assert [each.intensity_threshold for each in before.models] == [1.0]
    assert (after.models[0].discipline, after.models[0].intensity_threshold) == ("edf", 1.5)
    assert after.models[0].instances == before.models[0].instances
    assert restarted == ("edf", "shares")
    assert kept.intensity_threshold == 1.5
    assert (reset.discipline, reset.instance_choice) == ("fcfs", "shares")
    assert reset.intensity_threshold == 1.0


REFUSED = [
    (Order(model="dogs"), grpc.StatusCode.NOT_FOUND, "model"),
    (Order(discipline="lifo"), grpc.StatusCode.INVALID_ARGUMENT, "discipline"),
    (Order(instance_choice="dice"), grpc.StatusCode.INVALID_ARGUMENT, "instance_choice"),
    (Order(intensity_threshold=2.1), grpc.StatusCode.INVALID_ARGUMENT, "intensity_threshold"),
    (Order(discipline="ssjf"), grpc.StatusCode.FAILED_PRECONDITION, "discipline"),
]


async def test_what_does_not_exist_is_refused_by_name_and_changes_nothing(
    tmp_path: Path, grid: Grid, subtests: pytest.Subtests
) -> None:
    """A discipline that needs a predictor is refused where there is none."""
    settings = deployment(tmp_path, grid.port)
    async with planner(settings) as stub:
        for changes, status, field in REFUSED:
            order = Order(model=next(iter(settings.models)))
            order.MergeFrom(changes)
            with subtests.test(str(changes)):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.SetPolicy(order)
                assert refused.value.code() is status
                assert field in (refused.value.details() or "")
                assert await served(stub) == ("fcfs", "shares")


async def test_the_command_changes_a_policy_and_says_what_is_in_force(
    tmp_path: Path, grid: Grid
) -> None:
    settings = deployment(tmp_path, grid.port, listen=f"127.0.0.1:{free_port()}")
    (model,) = settings.models
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True)))
    words = ["models", "policy", model, "--discipline", "edf", "--choice", "carbondis"]
    words += ["--threshold", "0.9"]
    with structlog.testing.capture_logs():  # the planner runs in this process
        async with planner(settings) as stub:
            shell = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke
            said = await asyncio.to_thread(shell, app, [*words, "--config", str(file)])
            shown = await asyncio.to_thread(
                shell, app, ["models", "policy", model, "--json", "--config", str(file)]
            )
            sent = await served(stub)

    assert said.stdout == f"{model}: discipline edf, instance choice carbondis (threshold 0.9).\n"
    assert json.loads(shown.stdout)["discipline"] == "edf"
    assert json.loads(shown.stdout)["intensity_threshold"] == 0.9
    assert sent == ("edf", "carbondis")
