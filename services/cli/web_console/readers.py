"""Reads what the console shows, with the readers of `cinquefoil status`, `plan` and `carbon`."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cinquefoil.carbon.v1.carbon_pb2 import WatchRequest
from cinquefoil.planner.v1 import planner_pb2
from services.cli.account.report import rows
from services.cli.client import Clients, first
from services.cli.console.proto_json import document
from services.cli.plan.deviation import measures
from services.cli.plan.show import SOLVE_S, listed
from services.cli.status.show import fetch
from services.console.cached import Cached
from services.console.readers import Document
from services.kit.errors import ServiceError

_WINDOW: Final = timedelta(hours=24)
"""Of the account and of the forecast."""

_KEEP_S: Final = 15.0
"""The account and forecasts change by the hour."""


class ServiceReaders:
    """Reads a deployment's services."""

    def __init__(self, clients: Clients, digest: str, clock: Callable[[], float]) -> None:
        """Wrap the clients of a deployment.

        Args:
            clients: Its services.
            digest: Digest of the deployment file that they were found by.
            clock: Monotonic time, s.
        """
        self._clients, self._digest = clients, digest
        self._account = Cached(self._read_account, _KEEP_S, clock)
        self._forecasts = Cached(self._read_forecasts, _KEEP_S, clock)

    async def now(self) -> Document:
        """Return the status, the forecasts by zone, and the account of the last day by model."""
        return {
            "status": await fetch(self._clients, self._digest),
            "forecasts": await _or(self._forecasts.get(), {}),
            "account": await _or(self._account.get(), []),
        }

    async def plans(self) -> Document:
        """Return the newest plans."""
        answer = await self._clients.planner.ListPlans(planner_pb2.ListPlansRequest())
        return {"plans": [listed(plan, answer) for plan in answer.plans]}

    async def plan(self, version: int) -> Document:
        """Return one plan, and what it expected beside what was seen."""
        request = planner_pb2.GetPlanRequest(version=version)
        plan = (await self._clients.planner.GetPlan(request)).plan
        found = [asdict(each) | {"deviation": each.deviation} for each in measures(plan)]
        return document(plan) | {"measures": found}

    async def explanation(self, version: int) -> Document:
        """Return why a plan is as it is."""
        request = planner_pb2.ExplainRequest(version=version)
        answer = await self._clients.planner.Explain(request, timeout=SOLVE_S)
        return document(answer.explanation)

    async def difference(self, from_version: int, to_version: int) -> Document:
        """Return how two plans differ."""
        request = planner_pb2.DiffRequest(from_version=from_version, to_version=to_version)
        return document((await self._clients.planner.Diff(request)).diff)

    async def _read_account(self) -> list[Any]:
        request = planner_pb2.ReadAccountRequest(by=planner_pb2.ACCOUNT_GROUPING_MODEL)
        request.since.FromDatetime(datetime.now(UTC) - _WINDOW)
        responses = self._clients.planner.ReadAccount(request)
        entries = [entry async for response in responses for entry in response.entries]
        return rows(entries, "model")

    async def _read_forecasts(self) -> Document:
        request = WatchRequest()
        request.horizon.FromTimedelta(_WINDOW)
        snapshot = await first(self._clients.carbon.Watch(request))
        return {
            each.zone: document(each.forecast)
            for each in (snapshot.intensities if snapshot else ())
        }


async def _or(reading: Awaitable[Any], otherwise: Any) -> Any:
    """Return what is read; `otherwise` where its service does not answer: `status` says that."""
    try:
        return await reading
    except ServiceError:
        return otherwise
