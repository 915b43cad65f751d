"""Waiting work as batch services and routers meet it over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1 import waiting_pb2
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner


def report(requests: int = 100, within: timedelta = timedelta(hours=1)) -> bytes:
    found = waiting_pb2.ReportWaitingRequest(batch_id="b-1")
    bucket = found.models.add(model="digits").buckets.add(requests=requests)
    bucket.due.FromDatetime(datetime.now(UTC) + within)
    return found.SerializeToString()


async def sent(data: bytes) -> AsyncIterator[waiting_pb2.ReportWaitingRequest]:
    yield waiting_pb2.ReportWaitingRequest.FromString(data)
    await asyncio.Event().wait()


async def test_what_waits_is_released_to_batch_services_and_routers(
    tmp_path: Path, grid: Grid
) -> None:
    """Both hear of the same release; a report that cannot be is refused with its field."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        async with asyncio.timeout(45):
            call = stub.ReportWaiting(sent(report()))
            async for answer in call:
                if answer.releases:
                    break
            watch = stub.Watch(pb.WatchRequest(routing_only=True))
            async for response in watch:
                if response.releases:
                    break
            explained = await stub.Explain(pb.ExplainRequest())
        call.cancel()
        watch.cancel()
        many = waiting_pb2.ReportWaitingRequest(batch_id="b-1")
        model = many.models.add(model="digits")
        for _ in range(65):
            model.buckets.add(requests=1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stub.ReportWaiting(sent(many.SerializeToString())):
                pass

    (release,) = answer.releases
    assert answer.batch_services == 1
    assert release.periods[0].rate_rps > 0
    assert release.periods[0].cause == waiting_pb2.RELEASE_CAUSE_ROOM
    assert response.releases_changed
    assert response.releases[0].model == release.model == explained.releases[0].model
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "models.buckets" in str(refused.value.details())
