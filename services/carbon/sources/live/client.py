"""The HTTP client of all providers: proxies of the environment apply, except to this machine."""

import httpx

from services.kit import proxies


def http_client() -> httpx.AsyncClient:
    """Return a client. A proxy that cannot be used fails each request, with the variable's name."""
    try:
        return httpx.AsyncClient(mounts=proxies.LOOPBACK_DIRECT)
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # SOCKS, for example
        direct = dict.fromkeys(proxies.LOOPBACK_DIRECT, httpx.AsyncHTTPTransport())
        unusable = _Unusable(str(proxies.unusable(error)))
        return httpx.AsyncClient(transport=unusable, mounts=direct)


class _Unusable(httpx.AsyncBaseTransport):
    """A way out that is not there: zones without it go on.

    Args:
        why: The reason, a sentence.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Fail.

        Raises:
            ProxyError: Always.
        """
        raise httpx.ProxyError(self._why, request=request)
