"""The router's HTTP address, as a client of which batches have their lines answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Final
from urllib.parse import quote

import aiohttp
from pydantic_core import from_json

from services.kit.http.client import HttpClient

_PATH: Final = "/v2/waiting/lines"
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 60.0
_SILENT_S: Final = 60.0
"""Longest time without a word of a router: it says every 15 s that lines still wait."""
_PASSING: Final = (429, 502, 503)
"""Statuses of a router, or of what stands before it, that is full or away."""
_OK: Final = 200
_TOO_LARGE: Final = 413


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the router to a line.

    Attributes:
        line: Which of those sent, from 0.
        status: HTTP status; 0: none came.
        body: Its body.
        retry_after_s: Time after which to try again, where the router is full or away; None: the
            answer is final.
        waited_s: Time for which the router held it, s.
    """

    line: int
    status: int
    body: bytes
    retry_after_s: float | None = None
    waited_s: float = 0.0


class RouterClient:
    """Sends requests that can wait to the router.

    Args:
        http: Connections to it.
        most_bytes: Largest answer to a line.
    """

    def __init__(self, http: HttpClient, most_bytes: int) -> None:
        self._http, self._most_bytes = http, most_bytes

    async def send(
        self, path: str, lines: Sequence[bytes], headers: Mapping[str, str]
    ) -> AsyncGenerator[Answer, None]:
        """Send lines in one call and yield the answer of each as it comes.

        Where the call breaks, those that have none are to be tried again.

        Args:
            path: What each is a body of, such as "/v1/chat/completions".
            lines: JSON without line breaks.
            headers: Further headers.
        """
        given = {"Content-Type": "application/jsonl", **headers}
        left = set(range(len(lines)))
        why, retry_s = "the router is away", _RETRY_S
        try:
            async with self._http.request(
                "POST",
                f"{_PATH}?path={quote(path)}",
                data=BytesIO(b"\n".join(lines)),
                headers=given,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=_SILENT_S),
                read_bufsize=2**20,
            ) as response:
                if response.status == _OK:
                    async for answer in self._answers(response.content):
                        left.discard(answer.line)
                        yield answer
                else:  # of the whole call
                    why = (await response.content.read(2**16)).decode(errors="replace")
                    passing = response.status in _PASSING
                    retry_s = _retry_after_s(response.headers)
                    for line in () if passing else tuple(left):
                        left.discard(line)
                        yield Answer(line, response.status, why.encode())
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            why = f"{why}: {error}"
        for line in left:
            yield Answer(line, 0, why.encode(), retry_s)

    async def _answers(self, content: aiohttp.StreamReader) -> AsyncGenerator[Answer, None]:
        """Yield the answers in a call's body.

        Raises:
            ValueError: It is not one, or an answer is too large.
        """
        while head := await content.readline():
            if head == b"\n":
                continue
            said = from_json(head)
            size = int(said["bytes"])
            retry_ms, status = said.get("retry_after_ms", _RETRY_S * 1e3), int(said["status"])
            if size <= self._most_bytes:
                body = (await content.readexactly(size + 1))[:-1]
            else:
                status, body = _TOO_LARGE, b"the answer is too large"
                while (size := size - len(await content.read(min(size + 1, 2**16)))) >= 0:
                    pass
            retry_s = min(max(retry_ms / 1e3, 0.05), _LONGEST_RETRY_S)
            yield Answer(
                int(said["line"]),
                status,
                body,
                retry_s if status in _PASSING else None,
                said.get("waited_ms", 0) / 1e3,
            )


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        given = float(headers.get("Retry-After", ""))
    except ValueError:
        return _RETRY_S
    return min(max(given, 0.05), _LONGEST_RETRY_S)
