"""Reasons why something is not there yet, from the planner's conditions, with what ends them."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from rich.console import Console

from cinquefoil.condition.v1.records import Condition
from cinquefoil.planner.v1.plan_pb2 import PLAN_STATE_PROPOSED, PLAN_STATE_ROLLING, Plan
from cinquefoil.planner.v1.planner_pb2 import GetFleetRequest, GetPlanRequest
from services.cli.client import Clients
from services.cli.console.output import condition_lines
from services.kit.conditions import HOLDS, Effect, concerning, described, effect_of
from services.kit.errors import NotFound, ServiceError
from services.kit.rpc.condition_messages import conditions_from


@dataclass(frozen=True, slots=True)
class PlannerView:
    """The planner's account of what is not there yet.

    Attributes:
        conditions: Present conditions.
        rolling_out: Version of the plan that is being carried out; 0: none is.
        problem: Why the planner does not answer; "": it does.
    """

    conditions: tuple[Condition, ...] = ()
    rolling_out: int = 0
    problem: str = ""

    @classmethod
    async def of(cls, clients: Clients) -> "PlannerView":
        """Return the present view."""
        try:
            conditions = await known_conditions(clients)
            return cls(conditions, version_rolling_out(await newest_plan(clients)))
        except ServiceError as error:
            return cls(problem=error.message)

    def why_unserved(self, model: str) -> str:
        """Return why a model is not served, with the command that ends it or shows what does."""
        if self.problem:
            return self.problem
        found = _by_effect(concerning(model, self.conditions))
        if found:
            return described(found[0])
        if self.rolling_out:
            return (
                f"plan {self.rolling_out} is being carried out: workers load their models "
                "(run: cinquefoil plan watch)"
            )
        return "no plan has a segment of it yet (run: cinquefoil plan dry-run)"

    def why_no_plan(self) -> str:
        """Return why there is no plan, with the command that ends it or shows what does."""
        found = _by_effect(self.conditions)
        if found:
            return described(found[0])
        return self.problem or "the first one is being decided (run: cinquefoil plan watch)"


def _by_effect(conditions: Iterable[Condition]) -> list[Condition]:
    """Return conditions, those that stop something first."""
    return sorted(conditions, key=lambda each: list(Effect).index(effect_of(each)))


def version_rolling_out(plan: Plan | None) -> int:
    """Return the version of a plan that is being carried out; 0: it is not."""
    if plan is None or plan.state not in (PLAN_STATE_PROPOSED, PLAN_STATE_ROLLING):
        return 0
    return plan.version


async def newest_plan(clients: Clients) -> Plan | None:
    """Return the newest plan; None: there is none yet.

    Raises:
        ServiceError: The planner does not answer.
    """
    try:
        return (await clients.planner.GetPlan(GetPlanRequest())).plan
    except NotFound:
        return None


async def known_conditions(clients: Clients) -> tuple[Condition, ...]:
    """Return the planner's conditions.

    Raises:
        ServiceError: It does not answer.
    """
    return conditions_from((await clients.planner.GetFleet(GetFleetRequest())).conditions)


async def say_holds(clients: Clients) -> None:
    """Print what keeps the planner from acting on an order now, and the command that ends it."""
    with suppress(ServiceError):
        found = [each for each in await known_conditions(clients) if each.kind in HOLDS]
        for line in condition_lines(found):
            Console().print(line, soft_wrap=True)
