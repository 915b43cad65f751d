"""Waits until a deployment answers, with a reason, while there is hope."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.planner.v1.plan_pb2 import PLAN_STATE_PROPOSED, PLAN_STATE_ROLLING, Plan
from cinquefoil.planner.v1.planner_pb2 import GetFleetRequest, GetPlanRequest
from inference.grpc_service_pb2 import ServerReadyRequest
from services.cli.client import Clients
from services.kit.conditions import Effect, effect_of
from services.kit.errors import ServiceError
from services.kit.rpc.condition_messages import conditions_from

_PERIOD_S: Final = 0.2
_STOPPED_S: Final = 2.0
"""Time without a change after which a condition that stops something ends the waiting."""

_PASSING_S: Final = 30.0
"""The same for a condition that may pass by itself."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a deployment.

    Attributes:
        ready: Every model has an instance that takes requests.
        rolling_out: Version of the plan that is being carried out; 0: none is.
        conditions: Present conditions.
    """

    ready: bool
    rolling_out: int = 0
    conditions: tuple[Condition, ...] = ()

    @property
    def reason(self) -> str:
        """The awaited event, for a person."""
        if self.rolling_out:
            return f"plan {self.rolling_out} is being carried out: workers load their models"
        return next((each.sentence for each in self.conditions), "the first plan")

    @property
    def wrong(self) -> frozenset[tuple[ConditionKind, str]]:
        """Kind and subject of each condition, without plans' versions: the next may fail alike."""
        return frozenset((each.kind, each.subject.split("plan/")[0]) for each in self.conditions)

    def patience_s(self) -> float:
        """Return the time to wait without any change, s."""
        effects = {effect_of(each) for each in self.conditions}
        if self.rolling_out or not self.conditions:
            return float("inf")
        return _STOPPED_S if effects - {Effect.WAITS} else _PASSING_S


class Patience:
    """Ages of conditions: plans that fail one after another end the waiting."""

    def __init__(self) -> None:
        self._known_s: dict[tuple[ConditionKind, str], float] = {}

    def over(self, now: Progress, now_s: float) -> bool:
        """Update with the progress; return whether waiting longer is useless."""
        newest_s = max((self._known_s.setdefault(each, now_s) for each in now.wrong), default=now_s)
        return now_s - newest_s > now.patience_s()


async def until_ready(clients: Clients, show: Callable[[str], None]) -> tuple[Condition, ...]:
    """Wait until every model is served, or waiting longer is useless.

    Args:
        clients: Of a suite that serves.
        show: Takes the awaited event, whenever that changes.

    Returns:
        Conditions of models not served; (): every model is.
    """
    before, patience = None, Patience()
    while True:
        now = await _progress(clients)
        if now.ready:
            return ()
        if now != before:
            show(now.reason)
            before = now
        if patience.over(now, time.monotonic()):
            return now.conditions
        await asyncio.sleep(_PERIOD_S)


async def _progress(clients: Clients) -> Progress:
    ready, conditions, plan = False, tuple[Condition, ...](), Plan()
    with suppress(ServiceError):  # a service that has just started may not answer yet
        ready = (await clients.inference.ServerReady(ServerReadyRequest())).ready
    with suppress(ServiceError):
        fleet = await clients.planner.GetFleet(GetFleetRequest())
        conditions = conditions_from(fleet.conditions)
    with suppress(ServiceError):
        plan = (await clients.planner.GetPlan(GetPlanRequest())).plan
    rolling = plan.state in (PLAN_STATE_PROPOSED, PLAN_STATE_ROLLING)
    return Progress(ready, plan.version if rolling else 0, conditions)
