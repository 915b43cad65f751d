"""Identity of the client, for fairness and limits."""

from typing import Any, Final

from services.kit.net import host_of
from services.kit.rpc import Caller

CLIENT_ID = "x-client-id"
"""Metadata in which a gateway gives the identity of its client."""

_SPEAKERS: Final = ("gateway", "router", "batch", "region")
"""Roles that may speak for others."""


def client_of(context: Any, who: Caller) -> str:
    """Return the client's identity: what its certificate or token says, else its host.

    `x-client-id` counts from gateways and from services that pass calls on, and from every caller
    where identities are not checked.

    Args:
        context: The call's: gRPC's ServicerContext, or what has its methods.
        who: The caller, read when the call arrives: later, another task may need the identity.
    """
    if any(map(who.may_be, _SPEAKERS)):
        for key, value in context.invocation_metadata() or ():
            if key == CLIENT_ID:
                return f"id:{value!s}"
    return who.name or host_of(context.peer())
