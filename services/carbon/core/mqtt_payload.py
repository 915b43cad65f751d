"""Carbon intensity as MQTT messages (docs/mqtt.md); published messages can be subscribed to."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from cinquefoil.carbon.v1.records import Forecast, ForecastPeriod
from services.carbon.core.model import MAX_GCO2E_PER_KWH, Intensity, Sample
from services.kit.config.carbon_sources import Signal
from services.kit.mqtt.payload import Message, Refused, from_json, number

_RANK: Final = "percentile"
_MASS: Final = "intensity_gco2e_per_kwh"


def record_of(intensity: Intensity, now: datetime, forecast: Forecast | None) -> dict[str, Any]:
    """Return the published record of a zone.

    Args:
        intensity: Intensity in force.
        now: Grid time.
        forecast: Its forecast; None for percentiles.
    """
    sample = intensity.sample
    return {
        "zone": intensity.zone,
        "signal": intensity.signal,
        **_value_of(intensity),
        "since": _text(sample.since),
        "as_of": _text(sample.as_of or sample.since),
        "told_at": _text(now),
        "staleness_s": round(intensity.age(now).total_seconds(), 3),
        "provenance": sample.provenance,
        "source": intensity.source,
        "forecast": None if forecast is None else _forecast_of(forecast),
    }


def _value_of(intensity: Intensity) -> dict[str, Any]:
    value = intensity.sample.intensity_gco2e_per_kwh
    if intensity.signal == "percentile":
        return {"unit": _RANK, _RANK: value}
    return {
        "unit": "gCO2e/kWh",
        _MASS: value,
        "average_gco2e_per_kwh": intensity.average_gco2e_per_kwh,
        "ratio": intensity.ratio if math.isfinite(intensity.ratio) else None,
    }


def _forecast_of(forecast: Forecast) -> dict[str, Any]:
    return {"method": forecast.method, "periods": [_period_of(each) for each in forecast.periods]}


def _period_of(period: ForecastPeriod) -> dict[str, Any]:
    return {
        "since": _text(period.since),
        "length_s": period.length.total_seconds(),
        _MASS: round(period.intensity_gco2e_per_kwh, 2),
        "low_gco2e_per_kwh": round(period.low_gco2e_per_kwh, 2),
        "high_gco2e_per_kwh": round(period.high_gco2e_per_kwh, 2),
    }


def sample_of(
    message: Message, signal: Signal, now: datetime, known_until: datetime | None
) -> Sample | None:
    """Return the sample of a grid-signal message; None: its age is unknown, and another exists.

    A value without a time holds from its arrival. A retained one of unknown age is used only while
    there is no other.

    Args:
        message: A number or an object; see docs/mqtt.md.
        signal: Signal of the zone.
        now: Grid time.
        known_until: Start of the newest known sample; None: there is none.

    Raises:
        Refused: The message cannot be parsed, or is of another signal.
    """
    found = from_json(message.payload)
    if isinstance(found, Mapping):
        given = found.get("signal", signal)
        if given != signal:
            raise Refused(f"signal is {str(given)[:20]!r}; this zone's is {signal!r}")
        value = number(found, _RANK if signal == "percentile" else _MASS)
        since = _time(found["since"]) if "since" in found else None
    else:
        value, since = found, None
    highest = 100.0 if signal == "percentile" else MAX_GCO2E_PER_KWH
    if not 0 <= value <= highest:
        raise Refused(f"{value:g} is not within 0..{highest:g}")
    if since is not None:
        return Sample(since, value)
    if not message.retained:
        return Sample(now, value)
    return Sample(now, value, "held") if known_until is None else None


def _time(value: object) -> datetime:
    try:
        when = datetime.fromisoformat(str(value))
        if when.tzinfo is not None:
            return when.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Refused(f"since must be ISO 8601 with an offset, got {str(value)[:40]!r}")


def _text(when: datetime) -> str:
    return when.astimezone(UTC).isoformat().replace("+00:00", "Z")
