"""One place of a provider: the parts of its data, each requested and parsed by itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final, Generic, TypeVar, cast

import httpx
from pydantic import (
    AfterValidator,
    AwareDatetime,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
)

from services.carbon.core.model import Outlook, Sample
from services.carbon.core.sources.feed import Part, Reading, SourceFailed
from services.carbon.sources.live.error_text import MAX_CHARACTERS, error_text, without
from services.carbon.sources.live.http import Http
from services.kit.config.carbon_sources import LiveSource
from services.kit.errors import InvalidArgument
from services.kit.json_bounds import check_size, check_values

T = TypeVar("T")
S = TypeVar("S", bound=LiveSource)

Rows = Annotated[list[T], Field(fail_fast=True)]
"""Values of an answer; the first wrong one ends it: an error for each of 4 MiB takes 3 GiB."""

_MOST_VALUES: Final = 2**16
"""Of an answer: three days of one place in periods of five minutes have 20,000."""

HOUR: Final = timedelta(hours=1)
PAST: Final = timedelta(hours=24)
"""Values that are read where none are known."""

MAX_PAUSE: Final = timedelta(days=1)
"""Longest time without a request, whatever a provider says."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return a type's parser, built once: that takes milliseconds."""
    return TypeAdapter(kind)


@dataclass(frozen=True, slots=True)
class Request:
    """The request for one part.

    Attributes:
        part: The part; that of the present may bring the others, too.
        path: Appended to the source's address.
        parse: Parses the body; raises SourceFailed.
        params: Query.
    """

    part: Part
    path: str
    parse: Callable[[bytes], Reading]
    params: Mapping[str, str] = field(default_factory=dict)


class HttpProvider(ABC, Generic[S]):
    """One place of a provider over HTTP, polled by one caller.

    Args:
        http: HTTP client.
        source: Settings of the source.
        key: Key of the account; None: the source has none.
    """

    past_every = HOUR
    """Minimum interval between two requests for the past."""

    def __init__(self, http: Http, source: S, key: SecretStr | None = None) -> None:
        self.name = source.label
        self._http = http
        self._source = source
        self._url = source.url.rstrip("/")
        self._key = key or SecretStr("")
        self._schedules: Mapping[Part, Schedule] = {
            "present": Schedule(timedelta()),
            "history": Schedule(self.past_every),
            "forecast": Schedule(HOUR, enabled=source.forecast),
        }

    async def read(self, now: datetime, known_until: datetime | None) -> Reading:
        """Request every part that is due; return what came, and what failed.

        The past is requested earlier where the present did not come, or after a gap.

        Args:
            now: The time.
            known_until: Start of the caller's newest sample; None: the caller has none, and the
                past day is read, too.

        Raises:
            SourceFailed: Nothing came.
        """
        await self._prepare()
        early = known_until is None or now - known_until > 2 * HOUR
        parts: dict[Part, SourceFailed | None] = {}
        found: list[Reading] = []
        for request in self._requests(now, known_until):
            schedule = self._schedules[request.part]
            if not schedule.due(now, early=early and request.part == "history"):
                continue
            failure = parts[request.part] = await self._request(request, found)
            known = request.part == "present" or parts.get("present") is None
            schedule.note(now, failure, learn=known and request.part != "present")
            early = early or (failure is not None and request.part == "present")
            if failure is not None and failure.of_provider:
                break
        samples = tuple(sample for each in found for sample in each.samples)
        outlook = next((each.outlook for each in found if each.outlook), None)
        reading = Reading(samples, outlook, parts)
        if reading.failure is not None and outlook is None:
            reading.failure.parts = parts
            raise reading.failure
        return reading

    async def _request(self, request: Request, found: list[Reading]) -> SourceFailed | None:
        """Add what came to `found`; return the reason why there are no values, if any."""

        def parse(body: bytes) -> Reading:
            reading = request.parse(body)
            found.append(reading)
            wanted = reading.outlook if request.part == "forecast" else reading.samples
            if not wanted:
                raise SourceFailed("empty", f"{self.name}: its answer has no values")
            return reading

        try:
            await self._send(request, parse)
        except SourceFailed as error:
            return error
        return None

    async def _send(self, request: Request, parse: Callable[[bytes], Reading]) -> None:
        """Send a request."""
        url = self._url + request.path
        await self._http.get(url, parse, request.params, self._headers())

    async def _prepare(self) -> None:
        """Do what must come before all requests.

        Raises:
            SourceFailed: It failed.
        """

    def _headers(self) -> Mapping[str, str]:
        """Return the headers of every request."""
        return {}

    @abstractmethod
    def _requests(self, now: datetime, known_until: datetime | None) -> Sequence[Request]:
        """Return the request for each part that the provider has, that of the present first."""

    def _parsed(self, kind: type[T], body: bytes) -> T:
        """Return a JSON body as a record.

        Raises:
            SourceFailed: The body does not match.
        """
        if body.strip() == b"null":
            raise SourceFailed("empty", f"{self.name}: its answer is null")
        try:
            check_size(body, len(body))
            check_values(body, _MOST_VALUES)
        except InvalidArgument:
            message = f"{self.name}: its answer has more than {_MOST_VALUES} values or strings"
            raise SourceFailed("garbled", message) from None
        try:
            adapter: TypeAdapter[T] = _adapter(cast(Hashable, kind))
            return adapter.validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "body"
            message = f"{self.name}: cannot parse its answer: {place}: {first['msg']}"
            said = without(error_text(body), (self._key.get_secret_value(),))[:MAX_CHARACTERS]
            raise SourceFailed(
                "garbled", message + (f"; it says: {said}" if said else "")
            ) from None


class TokenProvider(HttpProvider[S]):
    """One whose requests carry a token, which `_prepare` gets; an expired one is replaced, once."""

    def __init__(self, http: Http, source: S, key: SecretStr | None = None) -> None:
        super().__init__(http, source, key)
        self._token: SecretStr | None = None

    async def _send(self, request: Request, parse: Callable[[bytes], Reading]) -> None:
        try:
            await super()._send(request, parse)
        except SourceFailed as error:
            if error.status != httpx.codes.UNAUTHORIZED or self._token is None:
                raise
        else:
            return
        self._token = None
        await self._prepare()
        await super()._send(request, parse)

    def _headers(self) -> Mapping[str, str]:
        if self._token is None:
            return {}
        return {"authorization": f"Bearer {self._token.get_secret_value()}"}


class Schedule:
    """Times at which one part is requested.

    Args:
        every: Minimum interval between two answers.
        enabled: False: it is never requested.
    """

    def __init__(self, every: timedelta, *, enabled: bool = True) -> None:
        self._every = every
        self._enabled = enabled
        self._next: datetime | None = None
        self._not_before: datetime | None = None

    def due(self, now: datetime, *, early: bool) -> bool:
        """Return whether to send the request at `now`.

        Args:
            now: The time.
            early: Send it before its time, unless the provider refuses it until then.
        """
        if not self._enabled or (self._not_before is not None and now < self._not_before):
            return False
        return early or self._next is None or now >= self._next

    def note(self, now: datetime, failure: SourceFailed | None, *, learn: bool) -> None:
        """Note the outcome of a request.

        What may pass is requested again at the next poll; what is not offered, a day later.

        Args:
            now: The time.
            failure: The failure; None: the part came.
            learn: Believe the provider that it does not offer the part.
        """
        if failure is None:
            self._next = now + self._every
        elif failure.not_offered:
            self._not_before = now + MAX_PAUSE if learn else None
        elif failure.retry_after_s is not None and learn:
            self._not_before = now + pause(failure.retry_after_s)
        elif failure.kind not in ("unreachable", "limited"):
            self._next = now + self._every


def pause(retry_after_s: float) -> timedelta:
    """Return the time for which a Retry-After is heeded: a day at most."""
    return timedelta(seconds=min(retry_after_s, MAX_PAUSE.total_seconds()))


def first_needed(now: datetime, known_until: datetime | None, overlap: timedelta) -> datetime:
    """Return from when on to read: revisions come within `overlap` before the newest value."""
    return max(known_until - overlap, now - PAST) if known_until else now - PAST


def step_of(samples: Sequence[Sample], default: timedelta) -> timedelta:
    """Return the time between two samples that are in order."""
    steps = (later.since - earlier.since for earlier, later in pairwise(samples))
    return min((step for step in steps if step), default=default)


def outlook_of(samples: Sequence[Sample], step: timedelta, issued: datetime) -> Outlook | None:
    """Return a forecast; None without values."""
    return Outlook(tuple(samples), step, issued) if samples else None


def _in_utc(when: datetime) -> datetime:
    try:
        return when.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{when.isoformat()} is outside the years 1..9999") from None


Instant = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A time of an answer, in UTC."""
