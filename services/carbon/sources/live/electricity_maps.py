"""Electricity Maps, API version 3: average intensity of a zone's consumption.

The present hour is an estimate and revised later. Free accounts see one zone and no forecast.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from pydantic import BaseModel, Field, SecretStr

from services.carbon.core.model import Outlook, Sample
from services.carbon.core.sources.feed import Reading
from services.carbon.sources.live.http import Http, HttpProvider, Instant, Throttle
from services.kit.config.carbon_sources import ElectricityMapsSource

HOUR = timedelta(hours=1)


class _Item(BaseModel):
    value: float | None = Field(validation_alias="carbonIntensity")
    when: Instant = Field(validation_alias="datetime")
    estimated: bool = Field(default=False, validation_alias="isEstimated")


class _History(BaseModel):
    history: list[_Item]


class _Forecast(BaseModel):
    forecast: list[_Item]


class ElectricityMaps(HttpProvider[ElectricityMapsSource]):
    """One zone."""

    def __init__(
        self, http: Http, source: ElectricityMapsSource, key: SecretStr | None = None
    ) -> None:
        super().__init__(http, source, key)
        self._query = {"zone": source.zone, "emissionFactorType": source.factors}
        if not source.estimates:
            self._query["disableEstimations"] = "true"
        self._history = Throttle(HOUR)

    async def read(self, now: datetime, known_until: datetime | None) -> Reading:
        """Return the latest value; once an hour, and after gaps, the past day and the forecast."""
        gap = known_until is None or now - known_until > 2 * HOUR
        latest = await self._get("latest")
        items = [] if latest is None else [self._parsed(_Item, latest)]
        past = await self._history.send(now, lambda: self._get("history"), early=gap)
        if past is not None:
            items = [*self._parsed(_History, past).history, *items]
        ahead = await self._forecast.send(now, lambda: self._get("forecast"))
        if ahead is None:
            return Reading(self._samples(items))
        expected = self._samples(self._parsed(_Forecast, ahead).forecast)
        return Reading(self._samples(items), Outlook(expected, HOUR, now))

    async def _get(self, what: str) -> bytes | None:
        url = f"{self._url}/carbon-intensity/{what}"
        return await self._http.get(url, self._query, {"auth-token": self._key.get_secret_value()})

    def _samples(self, items: Iterable[_Item]) -> tuple[Sample, ...]:
        """Return the values, oldest first; a null is a gap."""
        found = (
            Sample(item.when, item.value, "estimated" if item.estimated else "measured")
            for item in items
            if item.value is not None
        )
        return tuple(sorted(found, key=lambda sample: sample.since))
