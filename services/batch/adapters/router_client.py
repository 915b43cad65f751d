"""The router's HTTP address, as a client of which batches have their lines answered."""

import asyncio
import math
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self

import aiohttp

from services.kit.config import Deployment, ExpectedServer, Tls
from services.kit.net import is_ip, split_address
from services.kit.rpc.certificates import client_context

_CONNECT_S: Final = 5.0
_CONTEXT_S: Final = 60.0
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 60.0
_AWAY: Final = (502, 503)
_BUSY: Final = 429


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the router.

    Attributes:
        status: HTTP status; 0: none came.
        body: Its body.
        retry_after_s: Time after which to try again, where the router is full or away; None: the
            answer is final.
    """

    status: int
    body: bytes
    retry_after_s: float | None = None


class _Tls:
    """TLS contexts of the files as they are: certificates are renewed while batches run.

    Args:
        files: Of this side; None: plaintext.
        expected: Role that the server must have; None: any.
        server_name: Name in the router's certificate; "": the URL's.
    """

    def __init__(
        self, files: Tls | None, expected: ExpectedServer | None, server_name: str
    ) -> None:
        self._files, self._expected = files, expected
        self._context: ssl.SSLContext | None = None
        self._made_s = -math.inf
        self.server_name = server_name

    def context(self) -> ssl.SSLContext | bool:
        """Return the context of a connection; True: none is needed."""
        if self._files is None:
            return True
        now_s = time.monotonic()
        if self._context is None or now_s - self._made_s > _CONTEXT_S:
            self._context = client_context(self._files, expected=self._expected)
            self._made_s = now_s
        return self._context


class RouterClient:
    """Sends requests to the router.

    Args:
        session: HTTP connections.
        url: "http://host:port".
        most_bytes: Largest answer.
        tls: Of its connections.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, most_bytes: int, tls: _Tls
    ) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._most_bytes = most_bytes
        self._tls = tls

    @classmethod
    @asynccontextmanager
    async def connected(cls, deployment: Deployment, url: str, most: int) -> AsyncIterator[Self]:
        """Keep connections to the router while the block runs.

        Args:
            deployment: The deployment file.
            url: `batch.router_url`; "": the address that the file has.
            most: Connections at a time.
        """
        tls = deployment.identity("batch")
        name = ""
        address = url.partition("//")[2] or deployment.router.http_listen
        if tls is not None:
            host, _ = split_address(address)
            name = tls.ip_server_name if is_ip(host) else ""
        connector = aiohttp.TCPConnector(limit=most)
        timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=_CONNECT_S)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=False, auto_decompress=False
        ) as session:
            scheme = "http" if tls is None else "https"
            yield cls(
                session,
                url or f"{scheme}://{address}",
                deployment.router.worker_message_bytes,
                _Tls(tls, deployment.expected("router"), name),
            )

    async def send(
        self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Answer:
        """Send a request and return its answer; whatever goes wrong is in it.

        Args:
            path: Such as "/v1/chat/completions".
            body: JSON.
            headers: Further headers.
            timeout_s: Time in which the answer must come, s.
        """
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.post(
                    self._url + path,
                    data=body,
                    headers={"Content-Type": "application/json", **headers},
                    ssl=self._tls.context(),
                    server_hostname=self._tls.server_name or None,
                    allow_redirects=False,
                ) as response,
            ):
                content = await self._body(response)
                return Answer(response.status, content, _retry_after_s(response))
        except TimeoutError:
            return Answer(0, b"no answer in time", _RETRY_S)
        except (aiohttp.ClientError, OSError) as error:
            return Answer(0, f"the router is away: {error}".encode(), _RETRY_S)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        found = bytearray()
        async for piece in response.content.iter_chunked(2**16):
            found += piece
            if len(found) > self._most_bytes:
                return b"the answer is too large"
        return bytes(found)


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    if response.status != _BUSY and response.status not in _AWAY:
        return None
    try:
        given = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return _RETRY_S
    return min(max(given, 0.05), _LONGEST_RETRY_S)
