"""Identity of the client, for fairness: from metadata, certificate or address."""

from __future__ import annotations

from typing import Any

import grpc

CLIENT_ID = "x-client-id"
"""Metadata in which a client, or a gateway for its clients, gives the client's identity."""


def client_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the client's `x-client-id`, else its certificate's name, else its host."""
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID:
            return f"id:{value!s}"
    identities = context.peer_identities()
    if identities:
        return f"certificate:{next(iter(identities)).decode(errors='replace')}"
    peer: str = context.peer()
    return peer if peer.startswith("unix") else peer.rpartition(":")[0]
