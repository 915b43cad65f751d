"""The Web API of the Green Software Foundation's Carbon Aware SDK.

It serves another provider's values, in gCO2e/kWh, without saying whether they are average or
marginal: the zone's signal states it.
"""

from datetime import datetime, timedelta

from pydantic import BaseModel, Field

from services.carbon.core.model import Outlook, Sample
from services.carbon.core.sources.feed import Reading
from services.carbon.sources.live.http import HttpProvider, Instant, first_needed
from services.kit.config.carbon_sources import CarbonAwareSdkSource

_OVERLAP = timedelta(hours=3)


class _Emission(BaseModel):
    time: Instant
    rating: float


class _Expected(BaseModel):
    timestamp: Instant
    value: float
    duration_min: float = Field(validation_alias="duration", gt=0)


class _Forecast(BaseModel):
    generated: Instant = Field(validation_alias="generatedAt")
    data: list[_Expected] = Field(validation_alias="forecastData")


class CarbonAwareSdk(HttpProvider[CarbonAwareSdkSource]):
    """One location; the key is the header "x-api-key", if any."""

    async def read(self, now: datetime, known_until: datetime | None) -> Reading:
        """Return the new values; once an hour, the forecast."""
        start = first_needed(now, known_until, _OVERLAP)
        span = {"startTime": start.isoformat(), "endTime": now.isoformat()}
        seen = self._parsed(list[_Emission], await self._get("bylocation", span) or b"[]")
        samples = tuple(Sample(each.time, each.rating) for each in seen)
        ahead = await self._forecast.send(now, self._get_forecast)
        return Reading(samples, None if ahead is None else self._outlook(ahead))

    async def _get_forecast(self) -> bytes | None:
        return await self._get("forecasts/current", {})

    async def _get(self, what: str, span: dict[str, str]) -> bytes | None:
        headers = {"x-api-key": self._key.get_secret_value()} if self._key else {}
        params = {"location": self._source.location, **span}
        return await self._http.get(f"{self._url}/emissions/{what}", params, headers)

    def _outlook(self, body: bytes) -> Outlook | None:
        for found in self._parsed(list[_Forecast], body):
            data = sorted(found.data, key=lambda each: each.timestamp)
            if data:
                samples = tuple(Sample(each.timestamp, each.value, "forecast") for each in data)
                step = timedelta(minutes=data[-1].duration_min)
                return Outlook(samples, step, found.generated)
        return None
