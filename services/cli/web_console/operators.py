"""Carries out the console's orders, with the commands' own calls of the planner."""

from typing import Final
from urllib.parse import quote

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from cinquefoil.planner.v1 import planner_pb2
from services.cli.client import Clients
from services.cli.console.output import document
from services.cli.plan.orders import ORDER_S, method
from services.console.documents import Document
from services.kit.errors import InvalidArgument, NotFound
from services.kit.rpc.access import ON_BEHALF_OF

_ORDERS: Final[dict[str, type[Message]]] = {
    "apply": planner_pb2.ApplyRequest,
    "pin": planner_pb2.PinRequest,
    "unpin": planner_pb2.UnpinRequest,
    "rollback": planner_pb2.RollbackRequest,
    "objective": planner_pb2.SetObjectiveRequest,
    "policy": planner_pb2.SetPolicyRequest,
    "cordon": planner_pb2.CordonNodeRequest,
    "uncordon": planner_pb2.UncordonNodeRequest,
}


async def carry_out(clients: Clients, order: str, given: Document, owner: str) -> Document:
    """Carry out an order and return the planner's answer.

    Args:
        clients: Of the deployment.
        order: One of `_ORDERS`.
        given: The request's fields, by their names in the contract.
        owner: Who gave it; the planner writes it beside the console's identity.

    Raises:
        NotFound: There is no such order.
        InvalidArgument: The request has no such field, or it cannot have this value.
    """
    if order not in _ORDERS:
        raise NotFound(f"order: must be one of {', '.join(_ORDERS)}, got {order[:80]!r}")
    try:
        message = ParseDict(given, _ORDERS[order]())
    except ParseError as error:
        raise InvalidArgument(f"{order}: {error}") from error
    metadata = ((ON_BEHALF_OF, quote(owner)),)
    call = method(clients.planner, message)
    return document(await call(message, timeout=ORDER_S, metadata=metadata))
