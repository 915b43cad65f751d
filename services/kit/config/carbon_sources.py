"""Sources of a zone's carbon intensity (docs/carbon-sources.md explains each)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from services.kit.config.mqtt import Topic
from services.kit.config.section import Positive, Section
from services.kit.net import is_loopback_host

Signal = Literal["average", "marginal", "percentile"]
Url = Annotated[str, Field(pattern=r"^https?://[^\s?#@]+$")]
Intensity = Annotated[float, Field(ge=0, le=5000)]
"""gCO2e/kWh; larger values are mistakes of a unit."""

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s/?#]+$")]


class AnySource(Section):
    """A source of carbon intensity."""

    if TYPE_CHECKING:
        kind: str  # of each subclass, by which the union is discriminated
    allowed_signals: ClassVar[tuple[Signal, ...]] = ("average", "marginal")

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Signals that its values may have."""
        return self.allowed_signals


class StaticSource(AnySource):
    """One value for all time.

    Attributes:
        intensity_gco2e_per_kwh: The value, gCO2e/kWh.
    """

    kind: Literal["static"]
    intensity_gco2e_per_kwh: Intensity


class SyntheticSource(AnySource):
    """A documented daily curve with a seed; see `services.carbon.core.sources.synthetic`.

    Attributes:
        mean_gco2e_per_kwh: Mean, gCO2e/kWh. Default: California's (CARBONDIS, Table IV).
        std_gco2e_per_kwh: Standard deviation, gCO2e/kWh. Default: of the same table.
        seed: Random seed of the weather.
        step_s: Time between two values, s.
    """

    kind: Literal["synthetic"]
    mean_gco2e_per_kwh: Annotated[Intensity, Field(gt=0)] = 207.13
    std_gco2e_per_kwh: Intensity = 69.23
    seed: int = 0
    step_s: Positive = 1800.0


class TraceSource(AnySource):
    """Replay of a CSV file: our own format or an Electricity Maps export.

    Attributes:
        path: The file.
        loop: Whether the trace repeats, before its first instant as well as after its last.
    """

    kind: Literal["trace"]
    path: Path
    loop: bool = True


class LiveSource(AnySource):
    """A provider that is polled.

    Attributes:
        url: Address of its API.
        poll_s: Polling interval, s.
        fresh_s: Age at which a value expires, s.
        timeout_s: Timeout of one request, s.
        forecast: Whether to poll its forecast, too.
    """

    url: Url
    poll_s: Annotated[float, Field(ge=1)] = 300.0
    fresh_s: Annotated[float, Field(ge=60)] = 7200.0
    timeout_s: Positive = 20.0
    forecast: bool = True
    place_field: ClassVar[str]

    @property
    def label(self) -> str:
        """Kind and place, for example "electricity-maps:DE"."""
        place = getattr(self, self.place_field)
        return self.kind if place is None else f"{self.kind}:{place}"


class KeyedSource(LiveSource):
    """A provider that requires a key, which is never part of the deployment file.

    Attributes:
        key_file: File that contains only the key.
        key_env: Environment variable with the key.
    """

    key_file: Path | None = None
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    key_required: ClassVar[bool] = True

    def _problems(self) -> Iterator[str]:
        given = [name for name in ("key_file", "key_env") if getattr(self, name) is not None]
        if len(given) > 1 or (self.key_required and not given):
            yield "needs its key from one place: key_file or key_env"
        host = urlsplit(self.url).hostname or ""
        if given and self.url.startswith("http:") and not is_loopback_host(host):
            yield f"url: {self.url} would send the key in the clear; use https://"


class NesoSource(LiveSource):
    """NESO, the operator of Great Britain's grid; needs no key.

    Attributes:
        region: Region, 1..17; None: the whole of Great Britain.
    """

    kind: Literal["neso"]
    place_field: ClassVar[str] = "region"
    allowed_signals: ClassVar[tuple[Signal, ...]] = ("average",)
    url: Url = "https://api.carbonintensity.org.uk"
    fresh_s: Annotated[float, Field(ge=60)] = 5400.0
    region: Annotated[int, Field(ge=1, le=17)] | None = None


class ElectricityMapsSource(KeyedSource):
    """Electricity Maps, API version 3 or 4.

    Attributes:
        zone: Zone at the provider, for example "DE".
        factors: Life-cycle emissions, or those of operation alone.
        estimates: Whether to use estimated values.
        granularity: Length of its steps; steps of minutes need an account that has them.
        horizon_h: Length of its forecast, h; more than 24 need an account that has them.
    """

    kind: Literal["electricity-maps"]
    place_field: ClassVar[str] = "zone"
    allowed_signals: ClassVar[tuple[Signal, ...]] = ("average",)
    url: Url = "https://api.electricitymaps.com/v3"
    zone: Text
    factors: Literal["lifecycle", "direct"] = "lifecycle"
    estimates: bool = True
    granularity: Literal["hourly", "15_minutes", "5_minutes"] = "hourly"
    horizon_h: Literal[6, 24, 48, 72] = 24


_SIGNALS: Final[Mapping[str, Signal]] = {
    "co2_moer": "marginal",
    "co2_aoer": "average",
    "signal_index": "percentile",
}


class WattTimeSource(KeyedSource):
    """WattTime, API version 3; the key is the password.

    Attributes:
        username: User of the account.
        region: Region at the provider, for example "CAISO_NORTH".
        signal_type: Marginal emissions (co2_moer), average ones (co2_aoer), or the percentile of
            the marginal ones within the last month (signal_index).
        fresh_s: Age at which a value expires, s. Default: 1800; of co2_aoer 10,800.
    """

    kind: Literal["watttime"]
    place_field: ClassVar[str] = "region"
    url: Url = "https://api.watttime.org"
    fresh_s: Annotated[float, Field(ge=60)] = 1800.0
    username: Annotated[str, Field(min_length=1)]
    region: Text
    signal_type: Literal["co2_moer", "co2_aoer", "signal_index"] = "co2_moer"

    @model_validator(mode="before")
    @classmethod
    def _published_late(cls, given: Any) -> Any:
        """Set how long a value is fresh where that depends on the signal."""
        if isinstance(given, dict) and given.get("signal_type") == "co2_aoer":
            return {"fresh_s": 10_800.0, **given}
        return given

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Signals of its values."""
        return (_SIGNALS[self.signal_type],)


class EntsoeSource(KeyedSource):
    """ENTSO-E's transparency platform: generation in a European bidding zone.

    Attributes:
        area: EIC code of the zone, for example "10Y1001A1001A82H" (Germany and Luxembourg).
    """

    kind: Literal["entsoe"]
    place_field: ClassVar[str] = "area"
    allowed_signals: ClassVar[tuple[Signal, ...]] = ("average",)
    url: Url = "https://web-api.tp.entsoe.eu/api"
    poll_s: Annotated[float, Field(ge=1)] = 900.0
    fresh_s: Annotated[float, Field(ge=60)] = 14_400.0  # published an hour or two late
    area: Annotated[str, Field(pattern=r"^[0-9A-Z-]{16}$")]
    forecast: Literal[False] = False  # there is none


class CarbonAwareSdkSource(KeyedSource):
    """A Web API of the Green Software Foundation's Carbon Aware SDK.

    Attributes:
        location: Location at the provider, for example "eastus".
    """

    kind: Literal["carbon-aware-sdk"]
    place_field: ClassVar[str] = "location"
    key_required: ClassVar[bool] = False
    location: Text


class OpenAdrSource(KeyedSource):
    """A server (VTN) of OpenADR 3, whose events have the payload GHG; the key is the secret.

    Attributes:
        program_id: Program of the events.
        client_id: Client of OAuth 2.0, whose secret is the key; "": the server needs none.
        token_url: Where tokens are; "": "auth/token" below `url`.
    """

    kind: Literal["openadr"]
    place_field: ClassVar[str] = "program_id"
    key_required: ClassVar[bool] = False
    program_id: Text
    client_id: Annotated[str, Field(max_length=256)] = ""
    token_url: Url | Literal[""] = ""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if bool(self.client_id) != bool(self.key_file or self.key_env):
            yield "client_id: needs its secret, in key_file or key_env, and that needs it"
        host = urlsplit(self.token_url).hostname or ""
        if self.token_url.startswith("http:") and not is_loopback_host(host):
            yield f"token_url: {self.token_url} would send the secret in the clear; use https://"


class MqttSource(LiveSource):
    """A topic with the zone's intensity (docs/mqtt.md); needs `mqtt`.

    Attributes:
        topic: The full topic, without `mqtt.prefix`.
        poll_s: Minimum interval between two values; faster ones are skipped, s.
    """

    kind: Literal["mqtt"]
    place_field: ClassVar[str] = "topic"
    allowed_signals: ClassVar[tuple[Signal, ...]] = ("average", "marginal", "percentile")
    url: Literal[""] = ""  # the broker is `mqtt.broker`
    poll_s: Annotated[float, Field(ge=1)] = 60.0
    topic: Topic
    forecast: Literal[False] = False


Source = Annotated[
    StaticSource
    | SyntheticSource
    | TraceSource
    | NesoSource
    | ElectricityMapsSource
    | WattTimeSource
    | EntsoeSource
    | CarbonAwareSdkSource
    | OpenAdrSource
    | MqttSource,
    Field(discriminator="kind"),
]
