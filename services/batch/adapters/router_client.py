"""The router's HTTP address, as a client of which batches have their lines answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import aiohttp

from services.kit.http.client import HttpClient

_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 60.0
_PASSING: Final = (429, 502, 503)
"""Statuses of a router, or of what stands before it, that is full or away."""


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


class RouterClient:
    """Sends requests to the router.

    Args:
        http: Connections to it.
        most_bytes: Largest answer.
    """

    def __init__(self, http: HttpClient, most_bytes: int) -> None:
        self._http, self._most_bytes = http, most_bytes

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
        given = {"Content-Type": "application/json", **headers}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.request("POST", path, data=BytesIO(body), headers=given) as response,
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
    if response.status not in _PASSING:
        return None
    try:
        given = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return _RETRY_S
    return min(max(given, 0.05), _LONGEST_RETRY_S)
