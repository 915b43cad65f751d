"""The Web API of the Green Software Foundation's Carbon Aware SDK.

It serves another provider's values, in gCO2e/kWh, without saying whether they are average or
marginal: the zone's signal states it. Installations without a source of forecasts answer requests
for them with HTTP 400 or 501, and those without values with 204.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from pydantic import BaseModel, Field

from services.carbon.core.model import Sample
from services.carbon.core.sources.feed import Reading
from services.carbon.sources.live.provider import (
    HOUR,
    PAST,
    HttpProvider,
    Instant,
    Request,
    Rows,
    first_needed,
    outlook_of,
)
from services.kit.config.carbon_sources import CarbonAwareSdkSource

_OVERLAP = timedelta(hours=3)


class _Emission(BaseModel):
    time: Instant
    rating: float | None


class _Expected(BaseModel):
    timestamp: Instant
    value: float | None
    duration_min: float = Field(validation_alias="duration", gt=0)


class _Forecast(BaseModel):
    generated: Instant = Field(validation_alias="generatedAt")
    data: Rows[_Expected] | None = Field(validation_alias="forecastData")


class CarbonAwareSdk(HttpProvider[CarbonAwareSdkSource]):
    """One location; the key is the header "x-api-key", if any."""

    def _requests(self, now: datetime, known_until: datetime | None) -> tuple[Request, ...]:
        start, place = first_needed(now, known_until, _OVERLAP), {"location": self._source.location}
        span = {**place, "startTime": start.isoformat(), "endTime": now.isoformat()}
        return (
            Request("present", "/emissions/bylocation", self._seen, span),
            Request(
                "forecast", "/emissions/forecasts/current", lambda b: self._ahead(b, now), place
            ),
        )

    def _headers(self) -> Mapping[str, str]:
        return {"x-api-key": self._key.get_secret_value()} if self._key else {}

    def _seen(self, body: bytes) -> Reading:
        seen = self._parsed(Rows[_Emission], body)
        return Reading(
            tuple(Sample(each.time, each.rating) for each in seen if each.rating is not None)
        )

    def _ahead(self, body: bytes, now: datetime) -> Reading:
        for found in self._parsed(Rows[_Forecast], body):
            data = sorted(found.data or (), key=lambda each: each.timestamp)
            samples = [
                Sample(each.timestamp, each.value, "forecast")
                for each in data
                if each.value is not None
            ]
            if samples:
                # Some installations leave the time of issue at the year 1.
                stated = now - PAST <= found.generated <= now + HOUR
                step = timedelta(minutes=data[-1].duration_min)
                return Reading((), outlook_of(samples, step, found.generated if stated else now))
        return Reading()
