"""History -> its protobuf."""

from collections.abc import Iterable

from cinquefoil.planner.v1 import history_pb2, planner_pb2
from cinquefoil.planner.v1.records import HistoryPoint
from services.kit.rpc.record_mapping import to_message


def history_message(step_s: int, points: Iterable[HistoryPoint]) -> planner_pb2.ReadHistoryResponse:
    """Return points of a length, s, as a message."""
    return planner_pb2.ReadHistoryResponse(
        step_s=step_s, points=[to_message(point, history_pb2.HistoryPoint) for point in points]
    )
