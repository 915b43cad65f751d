"""Reasons why something is not there yet, from the planner's conditions, with what ends them."""

from contextlib import suppress

from rich.console import Console

from cinquefoil.condition.v1.records import Condition
from cinquefoil.planner.v1.planner_pb2 import GetFleetRequest
from services.cli.client import Clients
from services.cli.console.output import condition_lines
from services.kit.conditions import HOLDS
from services.kit.errors import ServiceError
from services.kit.rpc.condition_messages import conditions_from


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
