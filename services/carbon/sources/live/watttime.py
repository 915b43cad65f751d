"""WattTime, API version 3: marginal emissions (MOER), or their percentile.

A login is valid for half an hour. Past values are "historical", the present and the next days
"forecast". Free accounts get the percentile (signal index) everywhere, and emissions in one region.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Annotated

import httpx
from pydantic import AfterValidator, BaseModel, SecretStr

from services.carbon.core.model import Outlook, Provenance, Sample
from services.carbon.core.sources.feed import Reading, SourceFailed
from services.carbon.sources.live.http import (
    Http,
    HttpProvider,
    Instant,
    Throttle,
    first_needed,
    fits_a_header,
)
from services.kit.config.carbon_sources import WattTimeSource

G_PER_KWH_OF_LB_PER_MWH = 0.45359237
"""1 lb = 453.59237 g exactly (international avoirdupois pound, 1959)."""

STEP = timedelta(minutes=5)
_OVERLAP = timedelta(hours=1)  # revisions come within it
_SCALES = {"lbs_co2_per_mwh": G_PER_KWH_OF_LB_PER_MWH, "percentile": 1.0}
_UNITS = {"co2_moer": "lbs_co2_per_mwh", "signal_index": "percentile"}


def _sendable(token: SecretStr) -> SecretStr:
    """Return a token that a header may carry."""
    if not fits_a_header(token.get_secret_value()):
        raise ValueError("must be printable ASCII")
    return token


class _Login(BaseModel):
    token: Annotated[SecretStr, AfterValidator(_sendable)]


class _Point(BaseModel):
    point_time: Instant
    value: float
    imputed_data_used: bool = False


class _Meta(BaseModel):
    units: str
    region: str = ""


class _Points(BaseModel):
    data: list[_Point]
    meta: _Meta


class WattTime(HttpProvider[WattTimeSource]):
    """One region; the key is the account's password."""

    def __init__(self, http: Http, source: WattTimeSource, key: SecretStr | None = None) -> None:
        super().__init__(http, source, key)
        self._login = httpx.BasicAuth(source.username, self._key.get_secret_value())
        self._signal = source.signal_type
        self._token: SecretStr | None = None
        self._past = Throttle(timedelta(), enabled=self._signal == "co2_moer")

    async def read(self, now: datetime, known_until: datetime | None) -> Reading:
        """Return the present value, measured past ones, and the forecast."""
        if self._signal == "signal_index":
            return await self._now(now, self._request("/v3/signal-index"), ahead=False)
        since = first_needed(now, known_until, _OVERLAP)
        span = {"start": since.isoformat(), "end": now.isoformat()}
        past = await self._past.send(now, self._request("/v3/historical", span), early=True)
        ahead = self._request("/v3/forecast", {"horizon_hours": "48"})
        found = await self._now(now, ahead, ahead=self._source.forecast)
        if past is None:
            return found
        seen = self._samples(past, "measured")
        return Reading((*found.samples, *seen), found.outlook)

    async def _now(
        self, now: datetime, request: Callable[[], Awaitable[bytes | None]], *, ahead: bool
    ) -> Reading:
        body = await request()
        if body is None:
            return Reading()
        samples = self._samples(body, "forecast")
        past = tuple(each for each in samples if each.since <= now)
        to_come = tuple(each for each in samples if each.since >= now - STEP)
        return Reading(past, Outlook(to_come, STEP, now) if ahead and to_come else None)

    def _samples(self, body: bytes, provenance: Provenance) -> tuple[Sample, ...]:
        answer = self._parsed(_Points, body)
        units = answer.meta.units
        if units != _UNITS[self._signal]:
            raise SourceFailed(
                "garbled", f"{self.name}: the unit must be {_UNITS[self._signal]}, got {units!r}"
            )
        return tuple(
            Sample(
                point.point_time,
                point.value * _SCALES[units],
                "estimated" if point.imputed_data_used else provenance,
            )
            for point in sorted(answer.data, key=lambda point: point.point_time)
        )

    def _request(
        self, path: str, span: dict[str, str] | None = None
    ) -> Callable[[], Awaitable[bytes | None]]:
        params = {"region": self._source.region, "signal_type": "co2_moer", **(span or {})}
        return lambda: self._get(path, params)

    async def _get(self, path: str, params: dict[str, str]) -> bytes | None:
        """Send a request; after an expired login, log in again, once."""
        bearer = await self._bearer()
        try:
            return await self._http.get(self._url + path, params, bearer)
        except SourceFailed as error:
            if error.kind != "refused" or "401" not in str(error):
                raise
        self._token = None
        return await self._http.get(self._url + path, params, await self._bearer())

    async def _bearer(self) -> dict[str, str]:
        if self._token is None:
            body = await self._http.get(f"{self._url}/login", auth=self._login)
            self._token = self._parsed(_Login, body or b"").token
        return {"authorization": f"Bearer {self._token.get_secret_value()}"}
