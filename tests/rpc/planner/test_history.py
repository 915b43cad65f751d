"""History as agents, routers and readers meet it over real gRPC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1.history_pb2 import HistoryPoint
from tests.support.fake_agent import Agent, Grid, Suite, active, deployment, living, planner
from tests.support.planner.planner_client import Router, fleet_energy, violated
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub


def send_energy(agent: Agent, total_j: float) -> None:
    """Report a GPU's energy; half of it idle."""
    gpu = inventory_pb2.GpuEnergy(
        gpu_uuid="GPU-1",
        total_j=total_j,
        idle_j=total_j / 2,
        since=Timestamp(seconds=1_700_000_000),
    )
    agent.said.put_nowait(pb.JoinRequest(energy=[gpu]))


async def points(stub: PlannerServiceAsyncStub, **request: object) -> list[HistoryPoint]:
    call = stub.ReadHistory(pb.ReadHistoryRequest(**request))  # type: ignore[arg-type]
    return [point async for response in call for point in response.points]


async def total_j(stub: PlannerServiceAsyncStub) -> float:
    return sum(point.fleet.energy_j for point in await points(stub, step_s=3600))


async def test_energy_and_answers_are_read_while_they_are_recorded_and_after_a_restart(
    tmp_path: Path, grid: Grid
) -> None:
    """The minute that still runs is part of every answer; a restart writes it and continues."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        router = Router(stub)
        report = pb.ReportLoadRequest(router_id="r-1")
        report.window.FromTimedelta(timedelta(seconds=0.5))
        report.models.add(model="digits", arrivals=30)
        router._said.put_nowait(report)
        for joules in (1000, 3000):
            send_energy(agent, joules)
        await until(lambda: fleet_energy(stub, 2000.0))
        before = await total_j(stub)
        arrived = sum(point.models["digits"].arrived for point in await points(stub, step_s=3600))
    async with planner(settings) as stub:
        after = await total_j(stub)
        (latest, *_) = reversed(await points(stub))

    assert before == after == pytest.approx(2000.0)
    assert arrived == 30
    assert latest.gpus["GPU-1"].energy_j == pytest.approx(2000.0)
    age_s = datetime.now(UTC).timestamp() - latest.since.seconds
    assert 0 <= age_s < 120
    assert latest.since.seconds % 60 == 0


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ReadHistoryRequest(since=Timestamp(seconds=20), until=Timestamp(seconds=20)), "until"),
        (pb.ReadHistoryRequest(since=Timestamp(seconds=2**40)), "since"),
    ],
    ids=["empty", "far"],
)
async def test_what_cannot_be_read_is_refused(
    suite: Suite, request_: pb.ReadHistoryRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in suite.stub.ReadHistory(request_):
            pass

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == field


async def test_an_answer_is_bounded_whatever_is_requested(suite: Suite) -> None:
    """Of all time since 1970 in steps of a second: one length, which says how long it became."""
    call = suite.stub.ReadHistory(pb.ReadHistoryRequest(since=Timestamp(seconds=1), step_s=1))
    responses = [response async for response in call]

    assert {response.step_s for response in responses} == {7 * 3600}
    assert sum(len(response.points) for response in responses) <= 1500
