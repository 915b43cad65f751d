"""Reads the past of a deployment from its services."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.history_pb2 import HistoryPoint
from services.cli.client import Clients, first
from services.kit.errors import ServiceError, leaves

_RAN: Final = (plan_pb2.PLAN_STATE_ACTIVE, plan_pb2.PLAN_STATE_SUPERSEDED)
_PAGE: Final = 200
_MAX_PLANS: Final = 1000
"""More are no picture, and no table that anyone reads; the newest stay."""
_TIMEOUT_S: Final = 30.0
_HORIZON: Final = timedelta(hours=24)
"""Of the forecast, however short the past."""


@dataclass(frozen=True, slots=True)
class Past:
    """Messages of the services about a window.

    Attributes:
        since, until: The window.
        step_s: Length of the points, s.
        points: What the planner saw, in order of time.
        plans: Plans that ran in the window, oldest first; the one before them is the first.
        fleet: The fleet as it is now.
        intensities: Present intensities with their forecasts; empty: carbon does not answer.
        today: The account since midnight, UTC.
    """

    since: datetime
    until: datetime
    step_s: int
    points: list[HistoryPoint]
    plans: list[plan_pb2.Plan]
    fleet: planner_pb2.GetFleetResponse
    intensities: list[carbon_pb2.Intensity]
    today: list[planner_pb2.AccountEntry]


async def fetch(clients: Clients, hours: int, step_s: int = 0) -> Past:
    """Return the last hours.

    Args:
        clients: The services.
        hours: Length of the window, h.
        step_s: Wanted length of a point, s; 0: the shortest possible.

    Raises:
        ServiceError: The planner does not answer.
    """
    until = datetime.now(UTC)
    since = until - timedelta(hours=hours)
    midnight = until.replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        async with asyncio.TaskGroup() as tasks:
            points = tasks.create_task(
                _points(clients, since, until, step_s), name="history.points"
            )
            plans = tasks.create_task(_plans(clients, since), name="history.plans")
            fleet = tasks.create_task(_fleet(clients), name="history.fleet")
            intensities = tasks.create_task(_intensities(clients), name="history.intensities")
            today = tasks.create_task(_account(clients, midnight), name="history.account")
    except ExceptionGroup as group:
        raise next(leaves(group)) from group
    step_s, found = points.result()
    return Past(
        since,
        until,
        step_s,
        found,
        plans.result(),
        fleet.result(),
        intensities.result(),
        today.result(),
    )


async def _points(
    clients: Clients, since: datetime, until: datetime, step_s: int
) -> tuple[int, list[HistoryPoint]]:
    request = planner_pb2.ReadHistoryRequest(step_s=step_s)
    request.since.FromDatetime(since)
    request.until.FromDatetime(until)
    found: list[HistoryPoint] = []
    async for response in clients.planner.ReadHistory(request, timeout=_TIMEOUT_S):
        step_s = response.step_s
        found += response.points
    return step_s, found


async def _plans(clients: Clients, since: datetime) -> list[plan_pb2.Plan]:
    """Return the plans that ran since a time, and two before: what ran then, and before that."""
    found: list[plan_pb2.Plan] = []
    request, before = planner_pb2.ListPlansRequest(page_size=_PAGE), 0
    while len(found) < _MAX_PLANS:
        answer = await clients.planner.ListPlans(request)
        for plan in answer.plans:
            if plan.state in _RAN:
                found.append(plan)
                before += began(plan) <= since
                if before == 2:
                    return found[::-1]
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    return found[::-1]


def began(plan: plan_pb2.Plan) -> datetime:
    """Return when a plan came to run; when it was made, where that is not known."""
    since = plan.outcome.since if plan.outcome.HasField("since") else plan.created_at
    return since.ToDatetime(UTC)


async def _fleet(clients: Clients) -> planner_pb2.GetFleetResponse:
    return await clients.planner.GetFleet(planner_pb2.GetFleetRequest())


async def _intensities(clients: Clients) -> list[carbon_pb2.Intensity]:
    request = carbon_pb2.WatchRequest()
    request.horizon.FromTimedelta(_HORIZON)
    try:
        snapshot = await first(clients.carbon.Watch(request))
    except ServiceError:
        return []  # the curves of the past do not need it; `status` shows that it is away
    return list(snapshot.intensities) if snapshot else []


async def _account(clients: Clients, since: datetime) -> list[planner_pb2.AccountEntry]:
    request = planner_pb2.ReadAccountRequest(by=planner_pb2.ACCOUNT_GROUPING_MODEL)
    request.since.FromDatetime(since)
    responses = clients.planner.ReadAccount(request, timeout=_TIMEOUT_S)
    return [entry async for response in responses for entry in response.entries]
