"""An HTTP request in the form of a gRPC call's context."""

import math
from collections.abc import Mapping, Sequence

from aiohttp import web

from services.kit import peer


class HttpContext:
    """Gives access checks, traces and quotas what they read of gRPC's ServicerContext.

    Args:
        request: The request.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers, by names in lower case as gRPC has them."""
        return tuple((name.lower(), value) for name, value in self._request.headers.items())

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return the names in the caller's verified certificate."""
        return peer.identity(self._request.transport)

    def until_s(self) -> float:
        """Return when the caller's certificate expires, Unix time; inf: it showed none."""
        found = peer.expires_s(self._request.transport)
        return math.inf if found is None else found

    @property
    def path(self) -> str:
        """The path of the request."""
        return self._request.path

    def peer(self) -> str:
        """Return the caller's address."""
        return peer.address(self._request.transport)
