"""Electricity Maps, API versions 3 and 4: average intensity of a zone's consumption.

The present value is an estimate and revised later. Free accounts see one zone and no forecast. An
account without steps of minutes gets hours instead.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from pydantic import AliasChoices, BaseModel, Field, SecretStr

from services.carbon.core.model import Sample
from services.carbon.core.sources.feed import Reading, SourceFailed
from services.carbon.sources.live.http import Http
from services.carbon.sources.live.provider import (
    HOUR,
    HttpProvider,
    Instant,
    Request,
    Rows,
    outlook_of,
    step_of,
)
from services.kit.config.carbon_sources import ElectricityMapsSource

_STEPS = {
    "hourly": HOUR,
    "15_minutes": timedelta(minutes=15),
    "5_minutes": timedelta(minutes=5),
}


class _Item(BaseModel):
    zone: str | None = None
    value: float | None = Field(validation_alias="carbonIntensity")
    when: Instant = Field(validation_alias="datetime")
    estimated: bool | None = Field(default=None, validation_alias="isEstimated")


class _History(BaseModel):
    zone: str | None = None
    items: Rows[_Item] | None = Field(validation_alias=AliasChoices("history", "data"))


class _Forecast(BaseModel):
    zone: str | None = None
    items: Rows[_Item] | None = Field(validation_alias=AliasChoices("forecast", "data"))


class ElectricityMaps(HttpProvider[ElectricityMapsSource]):
    """One zone."""

    def __init__(
        self, http: Http, source: ElectricityMapsSource, key: SecretStr | None = None
    ) -> None:
        super().__init__(http, source, key)
        self._step = _STEPS[source.granularity]
        self._query = {
            "zone": source.zone,
            "emissionFactorType": source.factors,
            "temporalGranularity": source.granularity,
        }

    def _requests(self, now: datetime, known_until: datetime | None) -> tuple[Request, ...]:
        del known_until
        seen, ahead = dict(self._query), {"horizonHours": str(self._source.horizon_h)}
        if not self._source.estimates:
            seen["disableEstimations"] = "true"
        path = "/carbon-intensity/"
        return (
            Request("present", path + "latest", self._latest, seen),
            Request("history", path + "history", self._past, seen),
            Request(
                "forecast", path + "forecast", lambda b: self._ahead(b, now), self._query | ahead
            ),
        )

    def _headers(self) -> Mapping[str, str]:
        return {"auth-token": self._key.get_secret_value()}

    def _latest(self, body: bytes) -> Reading:
        item = self._parsed(_Item, body)
        return Reading(self._samples((item,), item.zone))

    def _past(self, body: bytes) -> Reading:
        found = self._parsed(_History, body)
        return Reading(self._samples(found.items or (), found.zone))

    def _ahead(self, body: bytes, now: datetime) -> Reading:
        found = self._parsed(_Forecast, body)
        samples = self._samples(found.items or (), found.zone)
        return Reading((), outlook_of(samples, step_of(samples, self._step), now))

    def _samples(self, items: Iterable[_Item], zone: str | None) -> tuple[Sample, ...]:
        """Return the values, oldest first; a null is a gap.

        Raises:
            SourceFailed: They are another zone's, as of the place where the caller's address is.
        """
        if zone is not None and zone != self._source.zone:
            what = (
                f"{self.name}: its answer is of the zone {zone[:100]!r}; set `zone` to one of its"
            )
            raise SourceFailed("unknown", what)
        found = (
            Sample(item.when, item.value, "estimated" if item.estimated else "measured")
            for item in items
            if item.value is not None
        )
        return tuple(sorted(found, key=lambda sample: sample.since))
