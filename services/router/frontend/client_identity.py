"""Who asks, so that clients can take turns: named by metadata, by certificate, or by address."""

from __future__ import annotations

from typing import Any

import grpc

CLIENT_ID = "x-client-id"
"""Metadata in which a client, or a gateway for its clients, says who asks."""


def client_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return who asks: what `x-client-id` says, else the certificate's name, else the host."""
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID:
            return f"id:{value!s}"
    identities = context.peer_identities()
    if identities:
        return f"certificate:{next(iter(identities)).decode(errors='replace')}"
    peer: str = context.peer()
    return peer if peer.startswith("unix") else peer.rpartition(":")[0]
