"""Grid events of operators: announced, in force, kept over restarts, cancelled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from cinquefoil.planner.v1 import grid_event_pb2, planner_pb2
from services.kit import config
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner
from tests.support.planner.planner_client import connected

HOUR = timedelta(hours=1)


def order(name: str, start: datetime, limit_w: float) -> planner_pb2.SetGridEventRequest:
    event = grid_event_pb2.GridEvent(event_id=name, site="hall", limit_w=limit_w)
    event.start.FromDatetime(start)
    event.end.FromDatetime(start + HOUR)
    return planner_pb2.SetGridEventRequest(event=event)


async def test_an_event_limits_its_site_over_a_restart_until_it_is_cancelled(
    tmp_path: Path, grid: Grid
) -> None:
    sites = {"hall": config.Site(nodes=("node-*",), host_power_w=50)}
    settings = deployment(tmp_path, grid.port).model_copy(update={"sites": sites})
    agent, now = Agent("node-a", ("GPU-1", "GPU-2")), datetime.now(UTC)
    everything = planner_pb2.ListGridEventsRequest(all=True)
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.SetGridEvent(order("past", now - 2 * HOUR, 400))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "event.end" in (refused.value.details() or "")
        await stub.SetGridEvent(order("later", now + 20 * HOUR, 300))
        kept = (await stub.SetGridEvent(order("now", now, 1))).event
        assert kept.status == grid_event_pb2.GRID_EVENT_STATUS_ACTIVE
    async with planner(settings) as stub, living(agent, stub):
        await connected(stub, "node-a")
        found = await stub.ListGridEvents(everything)
        assert [event.event_id for event in found.events] == ["later", "now"]
        assert (found.sites[0].limit_w, found.sites[0].setting) == (1, "grid event now")
        await stub.CancelGridEvent(planner_pb2.CancelGridEventRequest(event_id="now"))
        found = await stub.ListGridEvents(everything)
        assert found.events[1].status == grid_event_pb2.GRID_EVENT_STATUS_CANCELLED
        assert not found.sites[0].HasField("limit_w")
