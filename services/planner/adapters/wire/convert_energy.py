"""Energy accounts <-> their protobuf."""

import math
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2
from services.kit.errors import InvalidArgument
from services.kit.grouping import summed
from services.kit.rpc.record_mapping import to_message
from services.kit.segment import check_name
from services.planner.core.accounting.counters import EnergyCounters, ModelEnergy
from services.planner.core.accounting.entries import EntryKey, Figures, Grouping
from services.planner.core.accounting.moved import RegionKey

_MAX_ENTRIES = 500
_MAX_SEGMENTS = 4096

_GROUPINGS: dict[int, Grouping] = {
    planner_pb2.ACCOUNT_GROUPING_UNSPECIFIED: "",
    planner_pb2.ACCOUNT_GROUPING_MODEL: "model",
    planner_pb2.ACCOUNT_GROUPING_NODE: "node",
    planner_pb2.ACCOUNT_GROUPING_ZONE: "zone",
    planner_pb2.ACCOUNT_GROUPING_REGION: "region",
}


def counters_from(
    energy: Iterable[tuple[inventory_pb2.GpuEnergy, datetime]], models: Collection[str]
) -> dict[str, EnergyCounters]:
    """Return the counters of an agent by GPU.

    Args:
        energy: Accounts of GPUs (see `check_energy`), and their arrival times.
        models: Names of the deployment's models; use by others belongs to no model.
    """
    return {gpu.gpu_uuid: _counters(gpu, models, at) for gpu, at in energy}


def check_energy(energy: Iterable[inventory_pb2.GpuEnergy]) -> None:
    """Refuse accounts with an invalid figure.

    Raises:
        InvalidArgument: An energy or time is negative or not finite; a name is missing or too long.
    """
    for gpu in energy:
        check_name("energy.gpu_uuid", gpu.gpu_uuid)
        if len(gpu.segments) > _MAX_SEGMENTS:
            raise InvalidArgument.at("energy.segments", f"must have at most {_MAX_SEGMENTS}")
        figures = [gpu.total_j, gpu.idle_j]
        shown = [gpu.unattributed_j, gpu.power_w, gpu.error_ratio]
        for each in gpu.segments:
            figures += (each.active_j, each.idle_share_j, each.busy_s)
            shown.append(each.granted_j)
        if not all(map(math.isfinite, shown)):
            raise InvalidArgument.at("energy", f"GPU {gpu.gpu_uuid} reports what is no number")
        for value in figures:
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgument.at(
                    "energy", f"GPU {gpu.gpu_uuid} reports {value}, where 0 or more is possible"
                )


def grouping_from(value: int) -> Grouping:
    """Return the column by which entries are summed.

    Raises:
        InvalidArgument: The value is not a grouping.
    """
    if value not in _GROUPINGS:
        raise InvalidArgument.at("by", f"must be one of {sorted(_GROUPINGS)}, got {value}")
    return _GROUPINGS[value]


def instant(
    request: planner_pb2.ReadAccountRequest
    | planner_pb2.ReadHistoryRequest
    | planner_pb2.FreezeRequest,
    name: str,
) -> datetime | None:
    """Return an instant of a request; None: unset.

    Raises:
        InvalidArgument: It is outside the years 1..9999.
    """
    if not request.HasField(name):  # type: ignore[arg-type]  # "since" or "until"
        return None
    stamp: Timestamp = getattr(request, name)
    try:
        when: datetime = stamp.ToDatetime(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument.at(name, f"{error}") from error
    return when


def messages(
    entries: Iterable[tuple[EntryKey | RegionKey, Figures]],
) -> Iterator[planner_pb2.ReadAccountResponse]:
    """Yield messages of entries, each with as many as it may have."""
    response = planner_pb2.ReadAccountResponse()
    for key, figures in entries:
        entry = to_message(figures, planner_pb2.AccountEntry)
        entry.hour.FromDatetime(key.hour)
        for name, value in zip(key._fields[1:], key[1:], strict=True):
            setattr(entry, name, value)
        response.entries.append(entry)
        if len(response.entries) == _MAX_ENTRIES:
            yield response
            response = planner_pb2.ReadAccountResponse()
    if response.entries:
        yield response


def _counters(
    message: inventory_pb2.GpuEnergy, known: Collection[str], now: datetime
) -> EnergyCounters:
    # A request passes all stages of a pipeline; it is counted where it comes in.
    own = ((each, 0 if each.stage else each.requests) for each in message.segments)
    models = summed(
        (each.model, ModelEnergy(each.active_j, each.idle_share_j, requests))
        for each, requests in own
        if each.model in known
    )
    since_s = message.since.ToNanoseconds() / 1e9
    return EnergyCounters(
        since_s, now.timestamp(), message.total_j, message.idle_j, models, message.method[:32]
    )
