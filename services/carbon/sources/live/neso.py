"""Great Britain's grid: NESO's Carbon Intensity API (CC BY 4.0).

Half hours in UTC, average intensity of generation and imports. For the whole of Great Britain the
present half hour is a forecast, and revised once measured. Regions have only forecasts.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from services.carbon.core.model import Sample
from services.carbon.core.sources.feed import Reading
from services.carbon.sources.live.provider import (
    PAST,
    HttpProvider,
    Instant,
    Request,
    Rows,
    outlook_of,
)
from services.kit.config.carbon_sources import NesoSource

STEP = timedelta(minutes=30)
_AHEAD = timedelta(hours=48)


class _Value(BaseModel):
    forecast: float | None = None
    actual: float | None = None


class _Region(BaseModel):
    id: int = Field(validation_alias=AliasChoices("regionid", "id"))
    intensity: _Value


class _Period(BaseModel):
    since: Instant = Field(validation_alias="from")
    intensity: _Value | None = None
    regions: Rows[_Region] = []

    def value(self, region: int | None) -> _Value | None:
        found = (each.intensity for each in self.regions if each.id == region)
        return next(found, self.intensity)


def _without_region(value: object) -> object:
    """Return the periods: those of one region are inside its record, or inside a list of one."""
    record = value[0] if isinstance(value, list) and len(value) == 1 else value
    return record["data"] if isinstance(record, dict) and "data" in record else value


class _Answer(BaseModel):
    data: Annotated[Rows[_Period] | None, BeforeValidator(_without_region)]


class Neso(HttpProvider[NesoSource]):
    """Great Britain, or one of its regions."""

    def _requests(self, now: datetime, known_until: datetime | None) -> tuple[Request, ...]:
        """Return one request, for the past day and the next two: one small answer has all."""
        del known_until
        start = now.astimezone(UTC).replace(minute=now.minute // 30 * 30, second=0, microsecond=0)
        span = f"{_text(start - PAST)}/{_text(start + _AHEAD)}"
        path = f"/intensity/{span}"
        if self._source.region is not None:
            path = f"/regional/intensity/{span}/regionid/{self._source.region}"
        return (Request("present", path, lambda body: self._reading(body, start, now)),)

    def _reading(self, body: bytes, start: datetime, now: datetime) -> Reading:
        samples = tuple(self._samples(self._parsed(_Answer, body)))
        ahead = tuple(each for each in samples if each.since >= start)
        return Reading(
            tuple(each for each in samples if each.since <= start),
            outlook_of(ahead, STEP, now) if self._source.forecast else None,
        )

    def _samples(self, answer: _Answer) -> Iterator[Sample]:
        for period in sorted(answer.data or (), key=lambda period: period.since):
            value = period.value(self._source.region)
            if value is not None and value.actual is not None:
                yield Sample(period.since, value.actual)
            elif value is not None and value.forecast is not None:
                yield Sample(period.since, value.forecast, "forecast")


def _text(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%MZ")
