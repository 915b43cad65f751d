"""Conversion between the carbon service's types and protobuf."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from services.carbon.core.model import Forecast, Intensity, Period
from services.kit.errors import InvalidArgument

_SIGNALS = {
    "average": pb.SIGNAL_AVERAGE,
    "marginal": pb.SIGNAL_MARGINAL,
    "percentile": pb.SIGNAL_PERCENTILE,
}
_PROVENANCES = {
    "measured": pb.PROVENANCE_MEASURED,
    "estimated": pb.PROVENANCE_ESTIMATED,
    "forecast": pb.PROVENANCE_FORECAST,
    "held": pb.PROVENANCE_HELD,
    "assumed": pb.PROVENANCE_ASSUMED,
}


def intensity_to_wire(
    intensity: Intensity, now: datetime, forecast: Forecast | None = None
) -> pb.Intensity:
    """Return the message for `intensity` as sent at `now`, grid time."""
    value, ranked = intensity.sample.intensity_gco2e_per_kwh, intensity.signal == "percentile"
    return pb.Intensity(
        zone=intensity.zone,
        signal=_SIGNALS[intensity.signal],
        intensity_gco2e_per_kwh=math.nan if ranked else value,
        since=_timestamp(intensity.sample.since),
        average_gco2e_per_kwh=math.nan if ranked else intensity.average_gco2e_per_kwh,
        ratio=math.nan if ranked else intensity.ratio,
        source=intensity.source,
        staleness=_duration(intensity.age(now)),
        forecast=None if forecast is None else forecast_to_wire(forecast),
        provenance=_PROVENANCES[intensity.sample.provenance],
        percentile=value if ranked else None,
    )


def forecast_to_wire(forecast: Forecast) -> pb.Forecast:
    """Return the message for `forecast`."""
    return pb.Forecast(periods=map(_period_to_wire, forecast.periods), method=forecast.method)


def _period_to_wire(period: Period) -> pb.ForecastPeriod:
    return pb.ForecastPeriod(
        since=_timestamp(period.since),
        length=_duration(period.length),
        intensity_gco2e_per_kwh=period.intensity_gco2e_per_kwh,
        low_gco2e_per_kwh=period.low_gco2e_per_kwh,
        high_gco2e_per_kwh=period.high_gco2e_per_kwh,
    )


def duration_from_wire(message: Message, field: str) -> timedelta | None:
    """Return the duration in `field` of a request; None where it is unset.

    Raises:
        InvalidArgument: It is not a duration: out of range, or of mixed signs.
    """
    if not message.HasField(field):
        return None
    duration: Duration = getattr(message, field)
    try:
        duration.ToJsonString()  # checks what ToTimedelta does not
        return duration.ToTimedelta()
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{field} is not a valid duration: {error}", field=field) from error


def time_from_wire(message: Message, field: str) -> datetime | None:
    """Return the timestamp in `field` of a request; None where it is unset.

    Raises:
        InvalidArgument: It lies outside the years 1..9999.
    """
    if not message.HasField(field):
        return None
    timestamp: Timestamp = getattr(message, field)
    try:
        return timestamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{field} is not a valid timestamp: {error}", field=field) from error


def _timestamp(when: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(when)
    return message


def _duration(length: timedelta) -> Duration:
    message = Duration()
    message.FromTimedelta(length)
    return message
