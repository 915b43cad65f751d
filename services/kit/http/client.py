"""HTTP connections to another service of the deployment, with its role checked."""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
from yarl import URL

from services.kit.net import is_ip, split_address
from services.kit.rpc.certificates import client_context

if TYPE_CHECKING:
    from services.kit.config import ExpectedServer, Tls

_CONNECT_S: Final = 5.0
_CONTEXT_S: Final = 60.0
"""Time after which renewed certificates are read, s."""


class HttpClient:
    """Sends requests to one service, past proxies of the environment.

    Args:
        session: Connections.
        url: "http://host:port".
        tls: Certificates of this side; None: plaintext.
        expected: Role that the server must have; None: any.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        tls: Tls | None,
        expected: ExpectedServer | None,
    ) -> None:
        self._session, self._url = session, url
        self._tls, self._expected = tls, expected
        self._context: ssl.SSLContext | None = None
        self._read_s = -math.inf
        host, _ = split_address(url.partition("//")[2])
        self._server_name = tls.ip_server_name if tls is not None and is_ip(host) else ""

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, where: str, tls: Tls | None, expected: ExpectedServer | None, most: int
    ) -> AsyncIterator[Self]:
        """Keep connections while the block runs.

        Args:
            where: "host:port", or a URL.
            tls: Certificates of this side; None: plaintext.
            expected: Role that the server must have; None: any.
            most: Connections at a time.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=most),
            timeout=timeout,
            trust_env=False,
            auto_decompress=False,
        ) as session:
            scheme = "http" if tls is None else "https"
            url = where if "//" in where else f"{scheme}://{where}"
            yield cls(session, url.rstrip("/"), tls, expected)

    def request(self, method: str, path: str, **given: Any) -> Any:
        """Return the context manager of an answer, as aiohttp's `request`.

        Args:
            method: HTTP method.
            path: Path, with its query, encoded.
            given: `data`, `headers`. Answers come uncompressed: they are passed on as they are.
        """
        given["headers"] = {**given.get("headers", {}), "Accept-Encoding": "identity"}
        return self._session.request(
            method,
            URL(self._url + path, encoded=True),
            ssl=self._certified(),
            server_hostname=self._server_name or None,
            allow_redirects=False,
            **given,
        )

    def _certified(self) -> ssl.SSLContext | bool:
        """Return the TLS of a connection, by the files as they are; True: none is needed."""
        if self._tls is None:
            return True
        now_s = time.monotonic()
        if self._context is None or now_s - self._read_s > _CONTEXT_S:
            self._context = client_context(self._tls, expected=self._expected)
            self._read_s = now_s
        return self._context
