"""HTTP client of an OpenADR 3 server (VTN), as a VEN: bounded in bytes, pages and time."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp

from services.kit.config import OpenAdr
from services.kit.errors import Unavailable
from services.kit.json_bounds import parsed_answer

MAX_EVENTS: Final = 1000
"""Most events of a server that are read."""

_PAGE: Final = 50
_MAX_BYTES: Final = 4 * 2**20
"""Of an answer; and of a program's pages together, beyond which none is requested."""
_MAX_VALUES: Final = 200_000
_MAX_TOKEN: Final = 16_384
_MAX_SECRET: Final = 65_536
_EARLY_S: Final = 30.0
"""Time before a token's end in which another is requested, s."""

_UNAUTHORISED: Final = 401
_CONFLICT: Final = 409


class VtnClient:
    """Reads programs and events, and sends reports.

    Args:
        session: Connections.
        settings: The server.

    Attributes:
        ahead_s: By how much the server's clock is ahead of this one, as its last answer says, s.
    """

    def __init__(self, session: aiohttp.ClientSession, settings: OpenAdr) -> None:
        self._session, self._settings = session, settings
        self._url = settings.url.rstrip("/")
        self._token, self._expires_s = "", 0.0
        self._read_bytes = 0  # of the events that are being read
        self.ahead_s = 0.0
        self._tls: ssl.SSLContext | None = None

    @classmethod
    @asynccontextmanager
    async def connected(cls, settings: OpenAdr) -> AsyncIterator[Self]:
        """Keep connections while the block runs."""
        timeout = aiohttp.ClientTimeout(total=settings.timeout_s)
        connector = aiohttp.TCPConnector(limit=2)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=False, auto_decompress=False
        ) as session:
            yield cls(session, settings)

    async def events(self, program: str = "") -> tuple[list[object], bool]:
        """Return the events of a program, "": of all, and whether there are more than are read.

        Raises:
            Unavailable: The server does not answer, or not as an OpenADR server does.
        """
        found: list[object] = []
        self._read_bytes = 0
        while len(found) < MAX_EVENTS and self._read_bytes <= _MAX_BYTES:
            query = {"skip": len(found), "limit": _PAGE} | (
                {"programID": program} if program else {}
            )
            page = await self._json("GET", f"/events?{urlencode(query)}")
            if not isinstance(page, list):
                raise Unavailable("/events: must answer a list")
            found += page[:MAX_EVENTS]
            if len(page) < _PAGE:
                return found[:MAX_EVENTS], len(found) > MAX_EVENTS
        return found[:MAX_EVENTS], True

    async def program(self, name: str) -> Mapping[str, Any]:
        """Return a program.

        Raises:
            Unavailable: The server does not answer, or not with an object.
        """
        found = await self._json("GET", f"/programs/{name}")
        if not isinstance(found, dict):
            raise Unavailable("/programs: must answer an object")
        return found

    async def report(self, report: Mapping[str, Any]) -> None:
        """Send a report; one of the same name that is there already stays.

        Raises:
            Unavailable: The server does not take it.
        """
        await self._json("POST", "/reports", json.dumps(report).encode(), also=_CONFLICT)

    async def _json(self, method: str, path: str, body: bytes | None = None, also: int = 0) -> Any:
        """Return what the server answers; a token that it refuses is renewed once."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                status, answer = await self._send(method, path, body)
                if status == _UNAUTHORISED and self._token:
                    self._token = ""
                    status, answer = await self._send(method, path, body)
        except TimeoutError as error:
            limit_s = self._settings.timeout_s
            raise Unavailable(f"no answer within {limit_s:g} s (timeout_s)") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(f"{type(error).__name__}: {str(error)[:200]}") from error
        if not (200 <= status < 300 or status == also):
            raise Unavailable(f"{path.partition('?')[0]} answers HTTP status {status}")
        try:
            return await asyncio.to_thread(parsed_answer, answer or b"null", _MAX_VALUES)
        except ValueError as error:
            raise Unavailable(f"{path.partition('?')[0]}: {str(error)[:200]}") from error

    async def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers = {"Accept-Encoding": "identity", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._settings.client_id:
            headers["Authorization"] = f"Bearer {await self._access_token()}"
        return await self._exchange(method, self._url + path, body, headers)

    async def _access_token(self) -> str:
        """Return a token of the OAuth 2.0 client credentials grant (RFC 6749, section 4.4)."""
        if self._token and time.monotonic() < self._expires_s:
            return self._token
        settings = self._settings
        secret = await asyncio.to_thread(_secret, settings)
        form = {
            "grant_type": "client_credentials",
            "client_id": settings.client_id,
            "client_secret": secret,
        }
        if settings.scope:
            form["scope"] = settings.scope
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        url = settings.token_url or f"{self._url}/auth/token"
        status, answer = await self._exchange("POST", url, urlencode(form).encode(), headers)
        try:
            found = parsed_answer(answer, 100) if status == 200 else None
        except ValueError:
            found = None
        token = found.get("access_token") if isinstance(found, dict) else None
        if not isinstance(token, str) or not 0 < len(token) <= _MAX_TOKEN or not token.isascii():
            raise Unavailable(f"token_url: gives no access token (HTTP status {status})")
        lasts = found.get("expires_in", 60) if isinstance(found, dict) else 60
        lasts_s = float(lasts) if isinstance(lasts, int | float) and 0 < lasts < 1e9 else 60.0
        self._token = token
        self._expires_s = time.monotonic() + max(lasts_s - _EARLY_S, lasts_s / 2)
        return token

    async def _exchange(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        if self._tls is None:
            self._tls = await asyncio.to_thread(
                ssl.create_default_context, cafile=self._settings.certificates
            )
        async with self._session.request(
            method, url, data=body, headers=headers, ssl=self._tls, allow_redirects=False
        ) as response:
            found = bytearray()
            async for chunk in response.content.iter_any():
                found += chunk
                self._read_bytes += len(chunk)
                if len(found) > _MAX_BYTES:
                    raise Unavailable(f"answers more than {_MAX_BYTES} bytes")
            self.ahead_s = _ahead_s(response.headers.get("Date", ""))
            return response.status, bytes(found)


def _ahead_s(date: str) -> float:
    """Return by how much a clock is ahead, from an answer's Date; 0: it does not say, s."""
    try:
        at = parsedate_to_datetime(date)
        return (at - datetime.now(at.tzinfo or UTC)).total_seconds() if at.tzinfo else 0.0
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _secret(settings: OpenAdr) -> str:
    if settings.client_secret_file is None:
        return ""
    with settings.client_secret_file.open(encoding="utf-8") as file:
        return file.read(_MAX_SECRET).rstrip("\r\n")
