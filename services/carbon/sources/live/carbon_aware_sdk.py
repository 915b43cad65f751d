"""The Web API of the Green Software Foundation's Carbon Aware SDK.

It serves another provider's values, in gCO2e/kWh, without saying whether they are average or
marginal: the zone's signal states it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import AwareDatetime, BaseModel, Field, SecretStr

from services.carbon.core.model import Outlook, Sample
from services.carbon.core.sources.provider import Reading
from services.carbon.sources.live.http import Http, parsed, query, utc
from services.carbon.sources.live.throttle import Throttle
from services.kit.config import CarbonAwareSdkSource

_PAST = timedelta(hours=24)
_OVERLAP = timedelta(hours=3)


class _Emission(BaseModel):
    time: AwareDatetime
    rating: float


class _Expected(BaseModel):
    timestamp: AwareDatetime
    value: float
    duration_min: float = Field(validation_alias="duration", gt=0)


class _Forecast(BaseModel):
    generated: AwareDatetime = Field(validation_alias="generatedAt")
    data: list[_Expected] = Field(validation_alias="forecastData")


class CarbonAwareSdk:
    """One location.

    Args:
        http: HTTP client.
        source: Settings of the source.
        key: Header "x-api-key", if any.
    """

    def __init__(self, http: Http, source: CarbonAwareSdkSource, key: SecretStr | None) -> None:
        self.name = source.label
        self._http = http
        self._url = source.url.rstrip("/")
        self._location = source.location
        self._key = key
        self._forecast = Throttle(timedelta(hours=1), enabled=source.forecast)

    async def read(self, now: datetime, known_until: datetime | None) -> Reading:
        """Return the new values; once an hour, the forecast."""
        start = max(known_until - _OVERLAP, now - _PAST) if known_until else now - _PAST
        params = query(
            location=self._location, startTime=start.isoformat(), endTime=now.isoformat()
        )
        body = await self._get("bylocation", params) or b"[]"
        seen = parsed(list[_Emission], body, self.name)
        samples = tuple(Sample(utc(each.time, self.name), each.rating) for each in seen)
        ahead = await self._forecast.send(now, self._get_forecast)
        return Reading(samples, None if ahead is None else self._outlook(ahead))

    async def _get_forecast(self) -> bytes | None:
        return await self._get("forecasts/current", query(location=self._location))

    async def _get(self, what: str, params: dict[str, str]) -> bytes | None:
        headers = {} if self._key is None else {"x-api-key": self._key.get_secret_value()}
        return await self._http.get(f"{self._url}/emissions/{what}", params, headers)

    def _outlook(self, body: bytes) -> Outlook | None:
        for found in parsed(list[_Forecast], body, self.name):
            data = sorted(found.data, key=lambda each: each.timestamp)
            if data:
                samples = (
                    Sample(utc(each.timestamp, self.name), each.value, "forecast") for each in data
                )
                step = timedelta(minutes=data[-1].duration_min)
                return Outlook(tuple(samples), step, utc(found.generated, self.name))
        return None
