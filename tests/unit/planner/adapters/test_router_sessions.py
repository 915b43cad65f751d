"""Several routers' reports are taken in as those of one."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from services.kit.config import Objective
from services.planner.adapters.router_sessions import RouterSession, RouterSessions
from services.planner.change_event import ChangeEvent
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.fleet import Fleet
from services.planner.core.forecast.demand import ConfiguredLoad, Demand
from services.planner.core.load_report import LoadReport
from services.planner.core.online_search.measurement import CounterReadings
from services.planner.core.service_level import ServiceLevel, ServiceTarget
from tests.support.virtual_clock import VirtualClock

NOW_S = 1000.5


class SetClock(VirtualClock):
    """A clock that is set."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Planner:
    """Stand-in for the planner: the objects to which routers report."""

    def __init__(self) -> None:
        self.demand = Demand({"m": ConfiguredLoad(1.0, 1.0)}, now_s=lambda: NOW_S)
        self.level = ServiceLevel({"m": ServiceTarget(0.05, {"v": 0.9})})
        self.readings = CounterReadings()
        self.clock = SetClock(datetime(2026, 1, 1, tzinfo=UTC))
        state = ClusterState(
            self.clock,
            ChangeEvent(),
            (),
            Fleet({}, 0.0),
            self.demand,
            self.level,
            Objective(),
            "exact",
            readings=self.readings,
        )
        self.routers = RouterSessions(state)


def report(name: str, answered: int, *, latency_s: float = 0.1, late: int = 0) -> LoadReport:
    return LoadReport(
        router_id=name,
        revision=1,
        window_s=1.0,
        arrivals={"m": answered},
        answered=answered,
        latency_s={"m": latency_s} if answered else {},
        late={"m": late},
        by_variant={"m": {"v": answered}},
    )


def test_counts_of_several_routers_are_those_of_one_that_saw_it_all() -> None:
    """Load, late answers and latency: three parts of one window against the whole."""
    parts, whole = Planner(), Planner()
    for name, answered, late in (("a", 60, 12), ("b", 30, 6), ("c", 10, 2)):
        parts.routers.report(RouterSession(), report(name, answered, late=late))
    whole.routers.report(RouterSession(), report("a", 100, late=20))

    assert parts.demand.rates_rps() == pytest.approx(whole.demand.rates_rps())
    (violation,), (same,) = parts.level.late(), whole.level.late()
    assert violation.seen == pytest.approx(same.seen) == pytest.approx(0.2)
    assert parts.readings.reading(0.0).answers["m"].count == 100
    assert parts.routers.latency_s() == pytest.approx(whole.routers.latency_s())


def test_latency_is_the_mean_of_the_newest_windows_weighted_by_answers() -> None:
    routers, busy, idle = Planner().routers, RouterSession(), RouterSession()
    routers.report(busy, report("busy", 90, latency_s=0.2))
    routers.report(busy, report("busy", 90, latency_s=0.1))
    routers.report(idle, report("idle", 10, latency_s=1.1))
    assert routers.latency_s() == {"m": pytest.approx(0.2)}

    routers.leave(idle)
    assert routers.latency_s() == {"m": pytest.approx(0.1)}


def test_a_router_without_answers_says_nothing_of_latency() -> None:
    routers = Planner().routers
    routers.report(RouterSession(), report("idle", 0))
    assert routers.latency_s() == {}


def test_routers_of_the_planner_before_have_time_to_come_back() -> None:
    """A planner that takes over moves nothing away from routers that it does not see yet."""
    routers = Planner().routers
    assert not routers.served
    routers.expect()
    assert routers.served


def test_the_last_router_that_leaves_is_expected_back_for_the_time_of_its_restart() -> None:
    """An agent that leaves meanwhile has its segments moved first; one of several is not missed."""
    planner = Planner()
    routers, one, other = planner.routers, RouterSession(), RouterSession()
    routers.report(one, report("one", 0))
    routers.report(other, report("other", 0))
    planner.clock.now_s = 60.0
    routers.leave(other)
    routers.leave(one)
    routers.leave(other)  # again: it was not there any more
    planner.clock.now_s = 69.9
    assert routers.served
    planner.clock.now_s = 70.1
    assert not routers.served


def test_a_flood_of_reports_counts_as_one() -> None:
    """Windows cover the time that has passed, and a second more, however many there are."""
    routers, link = Planner().routers, RouterSession()
    flood = [replace(report("r", 10**5), window_s=60.0) for _ in range(1000)]
    taken = [routers.report(link, each) for each in flood]

    assert sum(each.window_s for each in taken) <= 60.0 + 2.0
    assert sum(each.answered for each in taken) < 10**7
