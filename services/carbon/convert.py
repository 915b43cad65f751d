"""Carbon's words <-> protobuf."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from services.carbon.domain import Intensity
from services.kit.errors import InvalidArgument

_SIGNALS = {"average": pb.SIGNAL_AVERAGE, "marginal": pb.SIGNAL_MARGINAL}


def intensity_to_wire(intensity: Intensity, now: datetime) -> pb.Intensity:
    """Return the message for `intensity` as sent at `now`, grid time."""
    since, staleness = Timestamp(), Duration()
    since.FromDatetime(intensity.sample.since)
    staleness.FromTimedelta(max(now - intensity.sample.since, timedelta()))
    return pb.Intensity(
        zone=intensity.zone,
        signal=_SIGNALS[intensity.signal],
        intensity_gco2e_per_kwh=intensity.sample.intensity_gco2e_per_kwh,
        since=since,
        average_gco2e_per_kwh=intensity.average_gco2e_per_kwh,
        ratio=intensity.ratio,
        source=intensity.source,
        staleness=staleness,
    )


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
