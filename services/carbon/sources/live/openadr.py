"""OpenADR 3: events of a server (VTN) with the payload GHG, emissions of a kWh by time.

Source: OpenADR Alliance, "OpenADR 3.1.0 Definitions", sections 8 and 10: GHG is in g/kWh.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, SecretStr

from services.carbon.core.model import Sample
from services.carbon.core.sources.feed import Reading, SourceFailed
from services.carbon.sources.live.http import sendable
from services.carbon.sources.live.provider import Request, Rows, TokenProvider, outlook_of, step_of
from services.kit.config.carbon_sources import OpenAdrSource
from services.kit.openadr import Unreadable, intervals, units_of

STEP = timedelta(hours=1)
_PAGE = 50
_UNITS = frozenset({"GHG", "G_PER_KWH", "G/KWH"})


class _Grant(BaseModel):
    access_token: Annotated[SecretStr, AfterValidator(sendable)]


class OpenAdr(TokenProvider[OpenAdrSource]):
    """The events of one program, at most 50; the key is the client's secret."""

    def _requests(self, now: datetime, known_until: datetime | None) -> tuple[Request, ...]:
        del known_until  # a server shows the events that it has
        query = {"limit": str(_PAGE), "programID": self._source.program_id}
        return (Request("present", "/events", lambda body: self._reading(body, now), query),)

    def _reading(self, body: bytes, now: datetime) -> Reading:
        problems: list[str] = []
        found = dict[datetime, Sample]()
        for event in self._parsed(Rows[dict[str, Any]], body):
            try:
                found |= {each.since: each for each in _samples(event, now)}
            except Unreadable as error:
                problems.append(str(error))
        samples = tuple(found[since] for since in sorted(found))
        if problems and not samples:
            raise SourceFailed("garbled", f"{self.name}: {problems[0]}")
        step = step_of(samples, STEP)
        past = tuple(each for each in samples if each.since <= now)
        to_come = tuple(each for each in samples if each.since >= now - step)
        return Reading(past, outlook_of(to_come, step, now) if self._source.forecast else None)

    async def _prepare(self) -> None:
        source = self._source
        if self._token is None and source.client_id:
            form = {
                "grant_type": "client_credentials",
                "client_id": source.client_id,
                "client_secret": self._key.get_secret_value(),
            }
            url = source.token_url or f"{self._url}/auth/token"
            found = await self._http.post(url, lambda body: self._parsed(_Grant, body), form)
            self._token = found.access_token if found else None


def _samples(event: Mapping[str, Any], now: datetime) -> Iterator[Sample]:
    """Yield an event's intensities.

    Raises:
        Unreadable: It is not as the standard has it.
    """
    unit = units_of(event.get("payloadDescriptors")).get("GHG", "GHG")
    for each in intervals(event, now):
        value = each.value("GHG")
        if value is None:
            continue
        if unit not in _UNITS:
            raise Unreadable(f"GHG: units must be GHG (g/kWh), got {unit[:20]!r}")
        yield Sample(each.start, value, "forecast")
