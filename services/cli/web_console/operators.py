"""Carries out the console's orders, with the commands' own calls of the planner."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from google.protobuf.json_format import ParseDict, ParseError

from cinquefoil.planner.v1 import planner_pb2
from services.cli.client import Clients
from services.cli.console.output import document
from services.cli.plan.orders import ORDER_S
from services.console.documents import Document
from services.kit.errors import InvalidArgument, NotFound
from services.kit.rpc.access import ON_BEHALF_OF


class PlannerOperators:
    """Gives a planner orders."""

    def __init__(self, clients: Clients) -> None:
        """Wrap the clients of a deployment."""
        planner = clients.planner
        self._orders: dict[str, tuple[type[Any], Callable[..., Awaitable[Any]]]] = {
            "apply": (planner_pb2.ApplyRequest, planner.Apply),
            "pin": (planner_pb2.PinRequest, planner.Pin),
            "unpin": (planner_pb2.UnpinRequest, planner.Unpin),
            "rollback": (planner_pb2.RollbackRequest, planner.Rollback),
            "objective": (planner_pb2.SetObjectiveRequest, planner.SetObjective),
            "policy": (planner_pb2.SetPolicyRequest, planner.SetPolicy),
            "cordon": (planner_pb2.CordonNodeRequest, planner.CordonNode),
            "uncordon": (planner_pb2.UncordonNodeRequest, planner.UncordonNode),
        }

    async def carry_out(self, order: str, given: Document, owner: str) -> Document:
        """Carry out an order and return the planner's answer.

        Args:
            order: "apply", "pin", "unpin", "rollback", "objective", "policy", "cordon" or
                "uncordon".
            given: The request's fields, by their names in the contract.
            owner: Who gave it; the planner writes it beside the console's identity.

        Raises:
            NotFound: There is no such order.
            InvalidArgument: The request has no such field, or it cannot have this value.
        """
        if order not in self._orders:
            raise NotFound(f"order: must be one of {', '.join(self._orders)}, got {order[:80]!r}")
        request, call = self._orders[order]
        try:
            message = ParseDict(given, request())
        except ParseError as error:
            raise InvalidArgument(f"{order}: {error}") from error
        metadata = ((ON_BEHALF_OF, quote(owner)),)
        return document(await call(message, timeout=ORDER_S, metadata=metadata))
