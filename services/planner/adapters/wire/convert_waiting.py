"""Waiting work <-> its protobuf."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from cinquefoil.planner.v1 import waiting_pb2
from cinquefoil.planner.v1.records import WaitingBucket, WaitingModel, WaitingRelease
from services.kit.errors import InvalidArgument
from services.kit.rpc.record_mapping import to_message
from services.planner.core.cycle.waiting_work import MAX_BUCKETS, MAX_REQUESTS

_LONGEST_NAME: Final = 128
_MOST_TOKENS: Final = 10**14
_MOST_MODELS: Final = 4096
_MOST_WINDOW_S: Final = 366 * 86_400


def waiting_from(message: waiting_pb2.ReportWaitingRequest) -> tuple[WaitingModel, ...]:
    """Return what a batch service reports, its figures bounded.

    Raises:
        InvalidArgument: It has no name, too many models or deadlines, or a deadline that cannot be.
    """
    if not 0 < len(message.batch_id) <= _LONGEST_NAME:
        raise InvalidArgument.at("batch_id", f"must have 1..{_LONGEST_NAME} characters")
    if len(message.models) > _MOST_MODELS:
        raise InvalidArgument.at("models", f"must be at most {_MOST_MODELS}")
    return tuple(_model(each) for each in message.models)


def _model(message: waiting_pb2.WaitingModel) -> WaitingModel:
    if len(message.buckets) > MAX_BUCKETS:
        raise InvalidArgument.at("models.buckets", f"must be at most {MAX_BUCKETS} of a model")
    return WaitingModel(
        model=message.model,
        buckets=tuple(
            WaitingBucket(
                due=_instant(each.due),
                requests=min(each.requests, MAX_REQUESTS),
                prompt_tokens=min(each.prompt_tokens, _MOST_TOKENS),
                output_tokens=min(each.output_tokens, _MOST_TOKENS),
                window=_window(each.window) if each.HasField("window") else None,
            )
            for each in message.buckets
        ),
        answered=message.answered,
        in_flight=message.in_flight,
        energy_j=message.energy_j if math.isfinite(message.energy_j) else 0.0,
        carbon_gco2e=message.carbon_gco2e if math.isfinite(message.carbon_gco2e) else 0.0,
    )


def _instant(message: Timestamp) -> datetime:
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument.at("models.buckets.due", str(error)) from error


def _window(message: Duration) -> timedelta:
    seconds = message.seconds + message.nanos / 1e9
    if not 0 <= seconds <= _MOST_WINDOW_S:
        raise InvalidArgument.at("models.buckets.window", f"must be within 0..{_MOST_WINDOW_S} s")
    return timedelta(seconds=seconds)


def releases_to(
    releases: Iterable[WaitingRelease], batch_services: int
) -> waiting_pb2.ReportWaitingResponse:
    """Return what is released as a batch service is sent it."""
    return waiting_pb2.ReportWaitingResponse(
        releases=[to_message(each, waiting_pb2.WaitingRelease) for each in releases],
        batch_services=batch_services,
    )
