"""Conversion between the carbon service's types and protobuf."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.records import Forecast
from services.carbon.core.model import Intensity
from services.kit.errors import InvalidArgument
from services.kit.rpc.record_mapping import to_message

T = TypeVar("T")


def intensity_to_wire(
    intensity: Intensity, now: datetime, forecast: Forecast | None = None
) -> pb.Intensity:
    """Return the message for `intensity` as sent at `now`, grid time."""
    value, ranked = intensity.sample.intensity_gco2e_per_kwh, intensity.signal == "percentile"
    times: dict[str, Any] = {"since": intensity.sample.since, "staleness": intensity.age(now)}
    return pb.Intensity(
        zone=intensity.zone,
        signal=pb.Signal.Value(f"SIGNAL_{intensity.signal.upper()}"),
        intensity_gco2e_per_kwh=math.nan if ranked else value,
        average_gco2e_per_kwh=math.nan if ranked else intensity.average_gco2e_per_kwh,
        ratio=math.nan if ranked else intensity.ratio,
        source=intensity.source,
        forecast=None if forecast is None else to_message(forecast, pb.Forecast),
        provenance=pb.Provenance.Value(f"PROVENANCE_{intensity.sample.provenance.upper()}"),
        percentile=value if ranked else None,
        **times,
    )


def duration_from_wire(message: Message, field: str) -> timedelta | None:
    """Return the duration in `field` of a request; None where it is unset.

    Raises:
        InvalidArgument: It is not a duration: out of range, or of mixed signs.
    """

    def checked(duration: Duration) -> timedelta:
        duration.ToJsonString()  # checks what ToTimedelta does not
        return duration.ToTimedelta()

    return _from_wire(message, field, "duration", checked)


def time_from_wire(message: Message, field: str) -> datetime | None:
    """Return the timestamp in `field` of a request; None where it is unset.

    Raises:
        InvalidArgument: It lies outside the years 1..9999.
    """
    return _from_wire(message, field, "timestamp", lambda found: found.ToDatetime(tzinfo=UTC))


def _from_wire(message: Message, field: str, kind: str, read: Callable[[Any], T]) -> T | None:
    try:
        return read(getattr(message, field)) if message.HasField(field) else None
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{field} is not a valid {kind}: {error}", field=field) from error
