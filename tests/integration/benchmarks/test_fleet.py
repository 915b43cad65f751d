"""Figures of the benchmark of fleets are of one planner."""

import pytest

from benchmarks.fleet.peers import Observer
from cinquefoil.planner.v1 import plan_pb2, planner_pb2


def seen(term: int) -> bytes:
    routing = plan_pb2.RoutingTable(term=term)
    return planner_pb2.WatchResponse(routing=routing).SerializeToString()


def test_figures_are_refused_where_leadership_moved_during_the_measurement() -> None:
    observer = Observer()
    observer.term, observer._raw = 3, seen(3)
    observer.require_same_leader()
    observer._raw = seen(4)

    with pytest.raises(RuntimeError, match="leadership moved from term 3 to 4"):
        observer.require_same_leader()
