"""Where a zone's carbon intensity may come from (docs/carbon-sources.md explains each)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from services.kit.config.mqtt import Topic
from services.kit.config.section import Positive, Section

Signal = Literal["average", "marginal", "percentile"]
Url = Annotated[str, Field(pattern=r"^https?://[^\s?#@]+$")]
Intensity = Annotated[float, Field(ge=0, le=5000)]
"""gCO2e/kWh. No plant emits more: beyond it, a unit was mistaken."""

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s/?#]+$")]


class StaticSource(Section):
    """One value for ever."""

    kind: Literal["static"]
    intensity_gco2e_per_kwh: Intensity

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What its numbers can mean."""
        return ("average", "marginal")


class SyntheticSource(Section):
    """A documented daily curve with a seed; see `services.carbon.core.sources.synthetic`."""

    kind: Literal["synthetic"]
    mean_gco2e_per_kwh: Annotated[Intensity, Field(gt=0)] = 207.13
    std_gco2e_per_kwh: Intensity = 69.23
    seed: int = 0
    step_s: Positive = 1800.0

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What its numbers can mean."""
        return ("average", "marginal")


class TraceSource(Section):
    """Replay of a CSV file: our own format or an Electricity Maps export."""

    kind: Literal["trace"]
    path: Path
    loop: bool = True

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What its numbers can mean."""
        return ("average", "marginal")


class LiveSource(Section):
    """A provider that is asked again and again.

    Attributes:
        url: Where its API is.
        poll_s: How often it is asked, s.
        fresh_s: A value that began longer ago is not the grid's present any more, s.
        timeout_s: Longest that one request may take, s.
        forecast: Ask for its forecast too.
    """

    url: Url
    poll_s: Annotated[float, Field(ge=1)] = 300.0
    fresh_s: Annotated[float, Field(ge=60)] = 7200.0
    timeout_s: Positive = 20.0
    forecast: bool = True

    @property
    def label(self) -> str:
        """How it is called, for example "electricity-maps:DE"."""
        raise NotImplementedError


class KeyedSource(LiveSource):
    """A provider that wants to know who asks; the key itself never stands in this file.

    Attributes:
        key_file: File that holds the key, and nothing else.
        key_env: Environment variable that holds it.
    """

    key_file: Path | None = None
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    key_required: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one_key(self) -> KeyedSource:
        given = [name for name in ("key_file", "key_env") if getattr(self, name) is not None]
        if len(given) > 1 or (self.key_required and not given):
            raise ValueError("needs its key from one place: key_file or key_env")
        return self


class NesoSource(LiveSource):
    """The operator of Great Britain's grid; needs no key.

    Attributes:
        region: 1..17; None: the whole of Great Britain.
    """

    kind: Literal["neso"]
    url: Url = "https://api.carbonintensity.org.uk"
    fresh_s: Annotated[float, Field(ge=60)] = 5400.0
    region: Annotated[int, Field(ge=1, le=17)] | None = None

    @property
    def label(self) -> str:
        """How it is called."""
        return self.kind if self.region is None else f"{self.kind}:{self.region}"

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What its numbers mean."""
        return ("average",)


class ElectricityMapsSource(KeyedSource):
    """Electricity Maps, API version 3.

    Attributes:
        zone: Its name for the zone, for example "DE".
        factors: Emissions of a plant's whole life, or of its operation alone.
        estimates: Take values that it estimated.
    """

    kind: Literal["electricity-maps"]
    url: Url = "https://api.electricitymaps.com/v3"
    zone: Text
    factors: Literal["lifecycle", "direct"] = "lifecycle"
    estimates: bool = True

    @property
    def label(self) -> str:
        """How it is called."""
        return f"{self.kind}:{self.zone}"

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What its numbers mean."""
        return ("average",)


class WattTimeSource(KeyedSource):
    """WattTime, API version 3; the key is the password.

    Attributes:
        username: Of the account.
        region: Its name for the zone, for example "CAISO_NORTH".
        signal_type: Marginal emissions, or their rank within the last month.
    """

    kind: Literal["watttime"]
    url: Url = "https://api.watttime.org"
    fresh_s: Annotated[float, Field(ge=60)] = 1800.0
    username: Annotated[str, Field(min_length=1)]
    region: Text
    signal_type: Literal["co2_moer", "signal_index"] = "co2_moer"

    @property
    def label(self) -> str:
        """How it is called."""
        return f"{self.kind}:{self.region}"

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What its numbers mean."""
        return ("marginal",) if self.signal_type == "co2_moer" else ("percentile",)


class EntsoeSource(KeyedSource):
    """ENTSO-E's transparency platform: what generates in a European bidding zone.

    Attributes:
        area: EIC code of the zone, for example "10Y1001A1001A82H" (Germany and Luxembourg).
    """

    kind: Literal["entsoe"]
    url: Url = "https://web-api.tp.entsoe.eu/api"
    poll_s: Annotated[float, Field(ge=1)] = 900.0
    fresh_s: Annotated[float, Field(ge=60)] = 14_400.0  # it publishes an hour or two late
    area: Annotated[str, Field(pattern=r"^[0-9A-Z-]{16}$")]
    forecast: Literal[False] = False  # there is none

    @property
    def label(self) -> str:
        """How it is called."""
        return f"{self.kind}:{self.area}"

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What its numbers mean."""
        return ("average",)


class CarbonAwareSdkSource(KeyedSource):
    """A Web API as the Carbon Aware SDK (Green Software Foundation) serves it.

    Attributes:
        location: Its name for the zone, for example "eastus".
    """

    kind: Literal["carbon-aware-sdk"]
    key_required: ClassVar[bool] = False
    location: Text

    @property
    def label(self) -> str:
        """How it is called."""
        return f"{self.kind}:{self.location}"

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What its numbers can mean: it does not say; who runs it knows."""
        return ("average", "marginal")


class MqttSource(LiveSource):
    """A topic that somebody publishes the zone's intensity on (docs/mqtt.md); needs `mqtt`.

    Attributes:
        topic: The topic, whole: `mqtt.prefix` is not put before it.
        poll_s: What comes faster is thinned out: a value is taken in at most so often, s.
    """

    kind: Literal["mqtt"]
    url: Literal[""] = ""  # the broker is one for all
    poll_s: Annotated[float, Field(ge=1)] = 60.0
    topic: Topic
    forecast: Literal[False] = False

    @property
    def label(self) -> str:
        """How it is called."""
        return f"{self.kind}:{self.topic}"

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What its numbers can mean: it does not say; who publishes knows."""
        return ("average", "marginal", "percentile")


Source = Annotated[
    StaticSource
    | SyntheticSource
    | TraceSource
    | NesoSource
    | ElectricityMapsSource
    | WattTimeSource
    | EntsoeSource
    | CarbonAwareSdkSource
    | MqttSource,
    Field(discriminator="kind"),
]
