"""An HTTP request in the form of a gRPC call's context."""

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

_READ: Final = ("authorization", "traceparent", "tracestate", "x-client-id")


class HttpContext:
    """Gives access checks, traces and quotas what they read of gRPC's ServicerContext.

    Args:
        request: The request.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that mean something to a service."""
        given = self._request.headers
        return tuple((name, value) for name in _READ for value in given.getall(name, ()))

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """Return the names in the caller's verified certificate, under gRPC's keys."""
        transport = self._request.transport
        shown: Any = transport.get_extra_info("peercert") if transport is not None else None
        if not shown:
            return {}
        names = [name.encode() for _, name in shown.get("subjectAltName", ())]
        subject = (pair for group in shown.get("subject", ()) for pair in group)
        return {
            "peer_spiffe_id": [name for name in names if name.startswith(b"spiffe://")],
            "x509_subject_alternative_name": names,
            "x509_common_name": [name.encode() for key, name in subject if key == "commonName"],
        }

    def peer(self) -> str:
        """Return the caller's address as gRPC writes it."""
        transport = self._request.transport
        place = transport.get_extra_info("peername") if transport is not None else None
        if not place:
            return "unix:"
        host, port = place[:2]
        return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
