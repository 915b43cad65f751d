"""HTTP requests to providers: bounded in time and size, with retries, and no keys in logs."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Annotated, Final, Generic, TypeVar

import httpx
import stamina
from pydantic import AfterValidator, AwareDatetime, SecretStr, TypeAdapter, ValidationError

from services.carbon.core.sources.feed import FailureKind, Reading, SourceFailed
from services.kit.config.carbon_sources import LiveSource
from services.kit.telemetry import logs

# It logs whole URLs, and one provider requires its key there.
logging.getLogger("httpx").setLevel(logging.WARNING)

_MAX_BYTES = 16 * 2**20
_ATTEMPTS = 3
_MAX_WAIT_S = 10.0
"""Longest wait for a retry: longer ones would delay the next poll."""

_KINDS: Mapping[int, FailureKind] = {
    HTTPStatus.BAD_REQUEST: "unknown",
    HTTPStatus.NOT_FOUND: "unknown",
    HTTPStatus.UNAUTHORIZED: "refused",
    HTTPStatus.PAYMENT_REQUIRED: "refused",
    HTTPStatus.FORBIDDEN: "refused",
    HTTPStatus.REQUEST_TIMEOUT: "unreachable",
    HTTPStatus.TOO_MANY_REQUESTS: "limited",
}

T = TypeVar("T")
S = TypeVar("S", bound=LiveSource)


class Http:
    """Requests to one provider.

    The ETag or Last-Modified of an answer is sent with the next request for the same URL.

    Args:
        client: HTTP client, shared.
        timeout_s: Timeout of one request, s.
        wait_s: Minimum wait before the first retry, s; before the second it is twice as long.
    """

    def __init__(self, client: httpx.AsyncClient, timeout_s: float, *, wait_s: float = 0.5) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._validators: dict[str, dict[str, str]] = {}

    async def get(
        self,
        url: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | None = None,
    ) -> bytes | None:
        """Return the body of a successful answer; None: not modified since the last request.

        Connection errors, server errors and "too many requests" are retried a few times, after the
        delay that the server demands.

        Raises:
            SourceFailed: The request failed.
        """
        request = self._client.build_request("GET", url, params=params, headers=headers)
        key = str(request.url)
        request.headers.update(self._validators.get(key, {}))
        attempts = stamina.retry_context(
            on=_again,
            attempts=_ATTEMPTS,
            timeout=2 * self._timeout_s,
            wait_initial=self._wait_s,
            wait_jitter=self._wait_s,
        )
        async for attempt in attempts:
            with attempt:
                response, body = await self._once(request, auth)
        self._remember(key, response)
        return None if response.status_code == HTTPStatus.NOT_MODIFIED else body

    async def _once(
        self, request: httpx.Request, auth: httpx.Auth | None
    ) -> tuple[httpx.Response, bytes]:
        where = f"{request.url.host}{request.url.path}"
        response = None
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.send(request, auth=auth, stream=True)
                body = await _bounded(response, where)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            what = type(error).__name__
            raise SourceFailed("unreachable", f"{where}: {what}") from None
        except TimeoutError:
            late = f"{where}: no answer within {self._timeout_s:g} s"
            raise SourceFailed("unreachable", late) from None
        finally:
            if response is not None:
                await response.aclose()
        _check(response, where)
        return response, body

    def _remember(self, key: str, response: httpx.Response) -> None:
        """Keep the validators of an answer, for the last few URLs."""
        known = {
            condition: response.headers[name]
            for name, condition in (
                ("etag", "if-none-match"),
                ("last-modified", "if-modified-since"),
            )
            if name in response.headers
        }
        self._validators.pop(key, None)
        if known:
            self._validators[key] = known
        while len(self._validators) > 8:
            del self._validators[next(iter(self._validators))]


def fits_a_header(text: str) -> bool:
    """Return whether a token or key may stand in a header (RFC 9110, section 5.5)."""
    return text.isascii() and text.isprintable()


class HttpProvider(ABC, Generic[S]):
    """One place of a provider over HTTP, polled by one caller.

    Args:
        http: HTTP client.
        source: Settings of the source.
        key: Key of the account; None: the source has none.
    """

    def __init__(self, http: Http, source: S, key: SecretStr | None = None) -> None:
        self.name = source.label
        self._http = http
        self._source = source
        self._url = source.url.rstrip("/")
        self._key = key or SecretStr("")
        self._forecast = Throttle(timedelta(hours=1), enabled=source.forecast)

    @abstractmethod
    async def read(self, now: datetime, known_until: datetime | None) -> Reading:
        """Return the new values.

        Args:
            now: The time.
            known_until: Start of the caller's newest sample; None: the caller has none, and the
                past day is read, too.

        Raises:
            SourceFailed: The provider gave no values.
        """

    def _parsed(self, kind: type[T], body: bytes) -> T:
        """Return a JSON body as a record.

        Raises:
            SourceFailed: The body does not match.
        """
        try:
            return TypeAdapter(kind).validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "body"
            message = f"{self.name}: cannot parse its answer: {place}: {first['msg']}"
            raise SourceFailed("garbled", message) from None


PAST: Final = timedelta(hours=24)
"""Values that are read where none are known."""


def first_needed(now: datetime, known_until: datetime | None, overlap: timedelta) -> datetime:
    """Return from when on to read: revisions come within `overlap` before the newest value."""
    return max(known_until - overlap, now - PAST) if known_until else now - PAST


def _in_utc(when: datetime) -> datetime:
    try:
        return when.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{when.isoformat()} is outside the years 1..9999") from None


Instant = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A time of an answer, in UTC."""


async def _bounded(response: httpx.Response, where: str) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > _MAX_BYTES:
            raise SourceFailed("garbled", f"{where}: the answer has more than {_MAX_BYTES} bytes")
    return bytes(body)


def _check(response: httpx.Response, where: str) -> None:
    status = response.status_code
    if status in {HTTPStatus.OK, HTTPStatus.NOT_MODIFIED}:
        return
    kind = _KINDS.get(status, "unreachable" if status >= 500 else "garbled")
    wait_s = _retry_after_s(response.headers, datetime.now(UTC))
    raise SourceFailed(kind, f"{where}: HTTP {status}", wait_s)


def _retry_after_s(headers: httpx.Headers, now: datetime) -> float | None:
    """Return the delay of Retry-After, seconds or a date (RFC 9110, section 10.2.3)."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max((when - now).total_seconds(), 0.0)


def _again(error: Exception) -> bool | float:
    """Return whether stamina should retry, or the delay that the server demands."""
    if not isinstance(error, SourceFailed) or error.kind not in ("unreachable", "limited"):
        return False
    wait_s = error.retry_after_s
    if wait_s is None:
        return True
    return wait_s if wait_s <= _MAX_WAIT_S else False


_log = logs.get("carbon.sources")
_REFUSED_FOR = timedelta(days=1)


class Throttle:
    """Sends a request at most once per `every`, and after a refusal not for a day.

    Args:
        every: Minimum interval.
        enabled: False: requests are never sent.
    """

    def __init__(self, every: timedelta, *, enabled: bool = True) -> None:
        self._every = every
        self._enabled = enabled
        self._next: datetime | None = None

    async def send(
        self, now: datetime, request: Callable[[], Awaitable[bytes | None]], *, early: bool = False
    ) -> bytes | None:
        """Return the answer; None: not due, not modified, or refused.

        Args:
            now: The time.
            request: Sends the request.
            early: Send it before it is due, unless it was refused.

        Raises:
            SourceFailed: The request failed for another reason than a refusal.
        """
        refused = self._next is not None and self._next - now > self._every
        due = self._next is None or now >= self._next
        if not self._enabled or refused or not (due or early):
            return None
        try:
            answer = await request()
        except SourceFailed as error:
            if error.kind != "refused":
                raise
            _log.info("not covered by this account", request=str(error))
            self._next = now + _REFUSED_FOR
            return None
        self._next = now + self._every
        return answer
