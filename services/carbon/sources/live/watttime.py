"""WattTime, API version 3: marginal (MOER) or average (AOER) emissions, or the MOER's percentile.

A login is valid for half an hour. Past values are "historical"; of the MOER the present and the
next days are the "forecast". The AOER is historical in most regions. Free accounts get the
percentile (signal index) everywhere, and emissions in one region.
"""

from datetime import datetime, timedelta
from typing import Annotated

import httpx
from pydantic import AfterValidator, BaseModel, SecretStr

from services.carbon.core.model import Provenance, Sample
from services.carbon.core.sources.feed import Reading, SourceFailed
from services.carbon.sources.live.http import Http, sendable
from services.carbon.sources.live.provider import (
    PAST,
    Instant,
    Request,
    Rows,
    TokenProvider,
    first_needed,
    outlook_of,
    step_of,
)
from services.kit.config.carbon_sources import WattTimeSource

G_PER_KWH_OF_LB_PER_MWH = 0.45359237
"""1 lb = 453.59237 g exactly (international avoirdupois pound, 1959)."""

STEP = timedelta(minutes=5)
_OVERLAP = timedelta(hours=1)  # revisions come within it
_LB = "lbs_co2_per_mwh"
_SCALES = {_LB: G_PER_KWH_OF_LB_PER_MWH, "percentile": 1.0}
_UNITS = {"co2_moer": _LB, "co2_aoer": _LB, "signal_index": "percentile"}


class _Login(BaseModel):
    token: Annotated[SecretStr, AfterValidator(sendable)]


class _Point(BaseModel):
    point_time: Instant
    value: float | None
    imputed_data_used: bool | None = False


class _Meta(BaseModel):
    units: str
    region: str = ""


class _Points(BaseModel):
    data: Rows[_Point] | None
    meta: _Meta | None = None


class WattTime(TokenProvider[WattTimeSource]):
    """One region; the key is the account's password."""

    past_every = timedelta()

    def __init__(self, http: Http, source: WattTimeSource, key: SecretStr | None = None) -> None:
        super().__init__(http, source, key)
        self._login = httpx.BasicAuth(source.username, self._key.get_secret_value())
        self._signal = source.signal_type

    def _requests(self, now: datetime, known_until: datetime | None) -> tuple[Request, ...]:
        signal = "co2_moer" if self._signal == "signal_index" else self._signal
        place = {"region": self._source.region, "signal_type": signal}
        if self._signal == "signal_index":
            index = Request("present", "/v3/signal-index", lambda b: self._index(b, now), place)
            return (index,)
        overlap = _OVERLAP if self._signal == "co2_moer" else PAST
        since = first_needed(now, known_until, overlap)
        span = {**place, "start": since.isoformat(), "end": now.isoformat()}
        ahead = {**place, "horizon_hours": "48"}
        if self._signal == "co2_aoer":
            return (
                Request("present", "/v3/historical", self._past, span),
                Request("forecast", "/v3/forecast", lambda b: self._ahead(b, now), ahead),
            )
        return (
            Request("present", "/v3/forecast", lambda b: self._ahead(b, now), ahead),
            Request("history", "/v3/historical", self._past, span),
        )

    def _past(self, body: bytes) -> Reading:
        return Reading(self._samples(body, "measured"))

    def _index(self, body: bytes, now: datetime) -> Reading:
        samples = self._samples(body, "forecast")
        return Reading(tuple(each for each in samples if each.since <= now))

    def _ahead(self, body: bytes, now: datetime) -> Reading:
        """Return the present value and the forecast."""
        samples = self._samples(body, "forecast")
        step = step_of(samples, STEP)
        past = tuple(each for each in samples if each.since <= now)
        to_come = tuple(each for each in samples if each.since >= now - step)
        if not self._source.forecast:
            return Reading(past)
        return Reading(past, outlook_of(to_come, step, now))

    def _samples(self, body: bytes, provenance: Provenance) -> tuple[Sample, ...]:
        answer = self._parsed(_Points, body)
        points = [point for point in answer.data or () if point.value is not None]
        if not points:
            return ()
        units, wanted = answer.meta.units if answer.meta else None, _UNITS[self._signal]
        if units != wanted:
            raise SourceFailed("garbled", f"{self.name}: the unit must be {wanted}, got {units!r}")
        return tuple(
            Sample(
                point.point_time,
                (point.value or 0.0) * _SCALES[wanted],
                "estimated" if point.imputed_data_used else provenance,
            )
            for point in sorted(points, key=lambda point: point.point_time)
        )

    async def _prepare(self) -> None:
        if self._token is None:
            found = await self._http.get(
                f"{self._url}/login", lambda body: self._parsed(_Login, body), auth=self._login
            )
            self._token = found.token if found else None
