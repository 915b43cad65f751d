"""The account by hour, as agents, routers and readers meet it over real gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2 as pb
from tests.support.fake_agent import Agent, Grid, Suite, active, deployment, living, planner
from tests.support.planner.planner_client import (
    Router,
    fleet_energy,
    fleet_intensity,
    refused,
    violated,
)
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

J_PER_KWH = 3.6e6


def send_energy(agent: Agent, total_j: float, requests: int) -> None:
    """Report a GPU that spent a fifth of its energy idle, and half of it on answers."""
    segments = [
        inventory_pb2.SegmentEnergy(
            segment_id=f"s-{number}",
            model="digits",
            active_j=total_j / 4,
            requests=requests // 2,
        )
        for number in range(2)
    ]
    gpu = inventory_pb2.GpuEnergy(
        gpu_uuid="GPU-1",
        total_j=total_j,
        idle_j=total_j / 5,
        segments=segments,
        since=Timestamp(seconds=1_700_000_000),
    )
    agent.said.put_nowait(pb.JoinRequest(energy=[gpu]))


async def account(
    stub: PlannerServiceAsyncStub, by: pb.AccountGrouping.ValueType
) -> list[pb.AccountEntry]:
    """Return the entries of all hours; the test may run over the end of one."""
    call = stub.ReadAccount(pb.ReadAccountRequest(by=by))
    return [entry async for response in call for entry in response.entries]


async def test_hours_by_model_node_and_zone_over_a_restart(tmp_path: Path, grid: Grid) -> None:
    """Reports come again, and come late; the planner restarts: each joule counts once."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        router = Router(stub)
        for tokens in (0, 40):
            report = pb.ReportLoadRequest(router_id="r-1")
            counts = {"input_tokens": tokens, "cached_input_tokens": 2 * tokens}  # half at most
            report.models.add(model="digits", **counts, output_tokens=2 * tokens)
            router._said.put_nowait(report)
        for total_j, requests in ((1000, 100), (3000, 300), (3000, 300), (2000, 200)):
            send_energy(agent, total_j, requests)
        await until(lambda: fleet_energy(stub, 2000.0))
    async with planner(settings) as stub, living(agent, stub):
        # Nothing is booked before: the next report would bring it, and here comes none.
        await until(lambda: fleet_intensity(stub, 100.0))
        send_energy(agent, 3000, 300)
        send_energy(agent, 5000, 500)
        await until(lambda: fleet_energy(stub, 4000.0))
        await active(stub, 1)
        by_model = await account(stub, pb.ACCOUNT_GROUPING_MODEL)
        by_node = await account(stub, pb.ACCOUNT_GROUPING_NODE)
        by_zone = await account(stub, pb.ACCOUNT_GROUPING_ZONE)
        whole = await account(stub, pb.ACCOUNT_GROUPING_UNSPECIFIED)

    digits = [entry for entry in by_model if entry.model == "digits"]
    without_model = [entry for entry in by_model if not entry.model]
    assert sum(entry.energy_j for entry in digits) == pytest.approx(2000.0)
    assert sum(entry.carbon_gco2e for entry in digits) == pytest.approx(
        2000.0 * 1.2 / J_PER_KWH * 100.0
    )
    assert sum(entry.requests for entry in digits) == 400
    assert sum(entry.output_tokens for entry in digits) == 80
    assert sum(entry.cached_input_tokens for entry in digits) == 40, "no more than were read"
    assert sum(entry.idle_j for entry in without_model) == pytest.approx(800.0)
    assert sum(entry.unattributed_j for entry in without_model) == pytest.approx(1200.0)
    assert sum(entry.base_energy_j for entry in digits) > 0
    assert {(entry.zone, entry.node) for entry in by_node} == {("Z", "node-a")}
    assert {entry.zone for entry in by_zone} == {"Z"}
    for entries in (by_model, by_node, by_zone, whole):
        assert sum(entry.energy_j for entry in entries) == pytest.approx(4000.0)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ReadAccountRequest(since=Timestamp(seconds=20), until=Timestamp(seconds=20)), "until"),
        (pb.ReadAccountRequest(since=Timestamp(seconds=2**40)), "since"),
        (pb.ReadAccountRequest(by=pb.ACCOUNT_GROUPING_REGION), "by"),
        (pb.ReadAccountRequest(by=7), "by"),  # type: ignore[arg-type]  # no such grouping
    ],
    ids=["empty", "far", "no regions", "grouping"],
)
async def test_what_cannot_be_read_is_refused(
    suite: Suite, request_: pb.ReadAccountRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in suite.stub.ReadAccount(request_):
            pass

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == field


async def test_an_invalid_energy_value_is_refused(tmp_path: Path, grid: Grid) -> None:
    """The value would spoil every sum that it is in; nothing of the report is booked."""
    agent = Agent("node-a", ("GPU-1",))
    async with planner(deployment(tmp_path, grid.port)) as stub, living(agent, stub) as life:
        send_energy(agent, float("nan"), 0)
        error = await refused(life)

        assert violated(error) == "energy"
        assert await fleet_energy(stub, 0.0)
