"""Identity of the client, for fairness and limits."""

from typing import Any, Protocol

from services.kit.net import host_of
from services.kit.rpc import Caller

CLIENT_ID = "x-client-id"
"""Metadata in which a gateway gives the identity of its client."""


class CallContext(Protocol):
    """A call, as gRPC's ServicerContext describes it."""

    def invocation_metadata(self) -> Any:
        """Return pairs of key and value; None: there are none."""
        ...

    def peer(self) -> str:
        """Return where the caller is."""
        ...


def client_of(context: CallContext, who: Caller) -> str:
    """Return the client's identity: what its certificate or token says, else its host.

    `x-client-id` counts from gateways, and from anybody where identities are not checked.

    Args:
        context: The call's.
        who: Who makes the call. Read when it arrives: later, another task may need the identity.
    """
    if who.may_be("gateway"):
        for key, value in context.invocation_metadata() or ():
            if key == CLIENT_ID:
                return f"id:{value!s}"
    return who.name or host_of(context.peer())
