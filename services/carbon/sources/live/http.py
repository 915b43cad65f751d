"""HTTP requests to providers: bounded in time and size, with retries, and no keys in logs."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar

import httpx
import stamina
from pydantic import SecretStr

from services.carbon.core.sources.feed import FailureKind, SourceFailed
from services.carbon.sources.live.error_text import MAX_CHARACTERS, error_text, without
from services.kit import proxies
from services.kit.telemetry import logs

_log = logs.get("carbon.http")
# It logs whole URLs, and one provider requires its key there.
logging.getLogger("httpx").setLevel(logging.WARNING)
# A retry is no news: a failure is logged once, when all of them have failed.
stamina.instrumentation.set_on_retry_hooks([])

_MAX_BYTES = 2**20
"""Largest answer: 30 hours of 20 production types in quarter hours have 300 kB of XML."""

_ATTEMPTS = 3
_MAX_REDIRECTS = 3
_MAX_WAIT_S = 10.0
"""Longest wait for a retry: longer ones would delay the next poll."""

_KINDS: Mapping[int, FailureKind] = {
    HTTPStatus.UNAUTHORIZED: "refused",
    HTTPStatus.PAYMENT_REQUIRED: "refused",
    HTTPStatus.FORBIDDEN: "refused",
    HTTPStatus.REQUEST_TIMEOUT: "unreachable",
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: "unreachable",
    HTTPStatus.TOO_MANY_REQUESTS: "limited",
    HTTPStatus.NOT_IMPLEMENTED: "unknown",
    HTTPStatus.NO_CONTENT: "empty",
    HTTPStatus.NOT_MODIFIED: "garbled",
}
_CLASSES: Mapping[int, FailureKind] = {3: "moved", 4: "unknown", 5: "unreachable"}

_OF_PROXIES = {
    HTTPStatus.FORBIDDEN,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
"""Statuses of a proxy that does not let a request out."""

_WITH_KEYS = ("auth-token", "x-api-key", "authorization")

T = TypeVar("T")


class Http:
    """Requests to one provider.

    The ETag or Last-Modified of an answer that could be used is sent with the next request for the
    same URL.

    Args:
        client: HTTP client, shared.
        timeout_s: Timeout of one request, s.
        wait_s: Minimum wait before the first retry, s; before the second it is twice as long.
        key: Key of the account, which a provider's error text may repeat.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        timeout_s: float,
        *,
        wait_s: float = 0.5,
        key: SecretStr | None = None,
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._key = key or SecretStr("")
        self._validators: dict[str, dict[str, str]] = {}
        self._moved: set[str] = set()

    async def get(
        self,
        url: str,
        parse: Callable[[bytes], T],
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | None = None,
    ) -> T | None:
        """Return the parsed body of an answer; None: not modified since the last that was parsed.

        Connection errors, server errors and "too many requests" are retried a few times, after the
        delay that the server demands.

        Raises:
            SourceFailed: The request failed, or `parse` did.
        """
        request = self._client.build_request("GET", url, params=params, headers=headers)
        return await self._parsed(request, parse, auth)

    async def post(
        self, url: str, parse: Callable[[bytes], T], form: Mapping[str, str]
    ) -> T | None:
        """Return the parsed body of the answer to a form; otherwise as `get`."""
        request = self._client.build_request("POST", url, data=form)
        return await self._parsed(request, parse)

    async def _parsed(
        self, request: httpx.Request, parse: Callable[[bytes], T], auth: httpx.Auth | None = None
    ) -> T | None:
        key = str(request.url)
        conditions = self._validators.get(key, {})
        request.headers.update(conditions)
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
        if response.status_code == HTTPStatus.NOT_MODIFIED and conditions:
            return None
        self._check(response, body)
        self._validators.pop(key, None)
        found = await asyncio.to_thread(parse, body)
        self._remember(key, response)
        return found

    async def _once(
        self, request: httpx.Request, auth: httpx.Auth | None
    ) -> tuple[httpx.Response, bytes]:
        """Return the answer to a request, whose redirects within its host are followed."""
        for _ in range(_MAX_REDIRECTS + 1):
            response, body = await self._answer(request, auth)
            target = response.next_request
            if target is None:
                if response.status_code >= 400:
                    self._check(response, body)
                return response, body
            self._check_redirect(response, request.url, target.url)
            request = target
        raise SourceFailed("moved", f"{_where(request.url)}: more than {_MAX_REDIRECTS} redirects")

    async def _answer(
        self, request: httpx.Request, auth: httpx.Auth | None
    ) -> tuple[httpx.Response, bytes]:
        where = _where(request.url)
        response = None
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.send(request, auth=auth, stream=True)
                return response, await _bounded(response, where)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            why = self._shown(" ".join(str(error).split()), request) or "no answer"
            what = f"{where}: {type(error).__name__}: {why}{proxies.note(str(request.url))}"
            raise SourceFailed("unreachable", what) from None
        except TimeoutError:
            late = f"{where}: no answer within {self._timeout_s:g} s"
            note = proxies.note(str(request.url))
            raise SourceFailed("unreachable", late + note) from None
        finally:
            if response is not None:
                await response.aclose()

    def _check(self, response: httpx.Response, body: bytes) -> None:
        """Check that an answer has a body, which may have values."""
        status, where = response.status_code, _where(response.url)
        if status == HTTPStatus.OK:
            if not body.strip():
                raise SourceFailed("empty", f"{where}: the answer has no content")
            return
        said = self._shown(error_text(body), response.request)
        note = proxies.note(str(response.url)) if status in _OF_PROXIES else ""
        raise SourceFailed(
            _KINDS.get(status, _CLASSES.get(status // 100, "garbled")),
            f"{where}: HTTP {status}" + (f": {said}" if said else "") + note,
            _retry_after_s(response.headers, datetime.now(UTC)),
            status if status >= 400 else None,
        )

    def _check_redirect(self, response: httpx.Response, url: httpx.URL, target: httpx.URL) -> None:
        """Check that a redirect keeps a key safe: to the same host, and not to less than HTTPS."""
        status = response.status_code
        place = f"{target.scheme}://{target.netloc.decode(errors='replace')}{target.path}"[:200]
        if not _is_safe(url, target):
            raise SourceFailed(
                "moved",
                f"{_where(url)}: HTTP {status}: moved to {place}, which is not followed, as it is "
                "another host or not https; set `url`, if that is right",
            )
        permanent = status in {HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.PERMANENT_REDIRECT}
        if permanent and place not in self._moved and len(self._moved) < 8:
            self._moved.add(place)
            _log.info("moved for good; correct `url`", request=_where(url), to=place)

    def _shown(self, text: str, request: httpx.Request) -> str:
        """Return the beginning of a text, without the keys of its request."""
        given = (request.headers.get(name, "").split(" ")[-1] for name in _WITH_KEYS)
        tokens = request.url.params.get_list("securityToken")
        return without(text, (self._key.get_secret_value(), *given, *tokens))[:MAX_CHARACTERS]

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
        if known:
            self._validators[key] = known
        while len(self._validators) > 8:
            del self._validators[next(iter(self._validators))]


def sendable(token: SecretStr) -> SecretStr:
    """Return a token that a header may carry."""
    if not fits_a_header(token.get_secret_value()):
        raise ValueError("must be printable ASCII")
    return token


def fits_a_header(text: str) -> bool:
    """Return whether a token or key may stand in a header (RFC 9110, section 5.5)."""
    return text.isascii() and text.isprintable()


def _where(url: httpx.URL) -> str:
    return f"{url.host}{url.path}"


def _is_safe(url: httpx.URL, target: httpx.URL) -> bool:
    """Return whether a key sent to `url` may be sent to `target`."""
    if target.userinfo or target.host != url.host:
        return False
    if (target.scheme, target.port) == (url.scheme, url.port):
        return True
    return target.scheme == "https" and target.port is None and url.port is None


async def _bounded(response: httpx.Response, where: str) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > _MAX_BYTES:
            raise SourceFailed("garbled", f"{where}: the answer has more than {_MAX_BYTES} bytes")
    return bytes(body)


def _retry_after_s(headers: httpx.Headers, now: datetime) -> float | None:
    """Return the delay of Retry-After, seconds or a date (RFC 9110, section 10.2.3)."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
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
