"""Energy that agents report is booked for all nodes together, and none of it twice or never."""

import math
from collections.abc import Iterable, Mapping

import pytest

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2
from services.kit import config
from services.kit.clock import RealClock
from services.kit.errors import InvalidArgument
from services.kit.rpc import Caller
from services.planner.adapters import agent_sessions
from services.planner.adapters.agent_sessions import AgentSession, AgentSessions, RecordEnergy
from services.planner.change_event import ChangeEvent
from services.planner.core.accounting.accountant import Accountant
from services.planner.core.accounting.counters import EnergyCounters
from services.planner.core.accounting.site import Site
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.fleet import Fleet
from services.planner.core.forecast.demand import Demand
from services.planner.core.service_level import ServiceLevel, ServiceTarget
from tests.support.fake_agent import Agent


def cluster(names: Iterable[str], clock: RealClock) -> ClusterState:
    """Return a cluster of nodes that serve digits."""
    return ClusterState(
        clock,
        ChangeEvent(),
        (),
        Fleet({name: config.Node(zone="Z", control=True) for name in names}, 0.0),
        Demand({}),
        ServiceLevel({"digits": ServiceTarget(0.05, {})}),
        config.Objective(),
        "exact",
    )


def booked(
    *reports: tuple[int, float], calls: list[str] | None = None, forget: bool = False
) -> float:
    """Return the energy that is booked of one GPU's reports at once, J.

    Args:
        reports: Time at which the agent's account began, s, and its total, J.
        calls: Takes the node's name for each booking.
        forget: The node is forgotten before.
    """
    accountant = Accountant(lambda node: Site(node, "Z", 1.2, 100.0))

    def account(node: str, counters: Mapping[str, EnergyCounters]) -> None:
        accountant.book(node, counters)
        if calls is not None:
            calls.append(node)

    sessions = AgentSessions(cluster(["node-a"], RealClock()), account)
    node = Agent("node-a", ("GPU-a",)).report()
    session = sessions.join(planner_pb2.JoinRequest(node=node), Caller(), "here")
    for since_s, total_j in reports:
        energy = inventory_pb2.GpuEnergy(gpu_uuid="GPU-a", total_j=total_j)
        energy.since.FromSeconds(since_s)
        sessions.take(session, planner_pb2.JoinRequest(energy=[energy]))
    if forget:
        sessions.forget("node-a")
    sessions.book()
    sessions.book()
    return accountant.account.total.energy_j


def test_many_reports_are_booked_as_one() -> None:
    """The first begins the account; the last says what all after it say."""
    calls: list[str] = []

    assert booked(*((1, 1000.0 + 10 * index) for index in range(50)), calls=calls) == 490.0
    assert calls == ["node-a", "node-a"]


def test_a_report_that_comes_late_takes_nothing_away() -> None:
    assert booked((1, 1000.0), (1, 3000.0), (1, 2000.0)) == 2000.0


def test_an_account_that_ends_is_booked_before_the_next_begins() -> None:
    """The account's agent lost its meters: the new ones count from zero."""
    assert booked((1, 1000.0), (1, 1500.0), (2, 30.0), (2, 40.0)) == 540.0


def test_what_is_not_booked_of_a_node_goes_with_it() -> None:
    """A node that is forgotten is booked before; what comes between is of no node."""
    calls: list[str] = []

    assert booked((1, 1000.0), (1, 3000.0), calls=calls, forget=True) == 0.0
    assert calls == ["node-a"]


class StandingClock(RealClock):
    """A clock whose seconds pass when a test says so."""

    passed_s = 0.0

    def monotonic(self) -> float:
        return self.passed_s


def energy_of(name: str, total_j: float) -> planner_pb2.JoinRequest:
    energy = inventory_pb2.GpuEnergy(gpu_uuid=f"GPU-{name}", total_j=total_j)
    energy.since.FromSeconds(1)
    return planner_pb2.JoinRequest(energy=[energy])


def fleet_of(
    nodes: int, account: RecordEnergy, clock: StandingClock
) -> tuple[AgentSessions, dict[str, AgentSession]]:
    """Return the joined agents of a fleet, of which each has begun an account."""
    names = [f"node-{number}" for number in range(nodes)]
    sessions = AgentSessions(cluster(names, clock), account)
    joined = {}
    for name in names:
        node = Agent(name, (f"GPU-{name}",)).report()
        joined[name] = sessions.join(planner_pb2.JoinRequest(node=node), Caller(), "here")
        sessions.take(joined[name], energy_of(name, 1.0))
    return sessions, joined


def test_nodes_of_a_large_fleet_are_booked_in_turns() -> None:
    """A booking holds up all else: of a thousand nodes some are booked at a time, each in turn."""
    calls: list[str] = []
    clock = StandingClock()
    sessions, joined = fleet_of(120, lambda node, _: calls.append(node), clock)
    rounds: list[list[str]] = []
    for _ in range(4):
        calls.clear()
        for name, session in joined.items():
            sessions.take(session, energy_of(name, 2.0))
        sessions.book()
        sessions.book()
        rounds.append(list(calls))
        clock.passed_s += 1.0

    assert [len(set(each)) for each in rounds] == [50, 25, 25, 25]
    assert {name for each in rounds for name in each} == set(joined)


def test_all_of_a_large_fleet_is_booked_where_an_account_ends() -> None:
    calls: list[str] = []
    sessions, joined = fleet_of(120, lambda node, _: calls.append(node), StandingClock())
    calls.clear()
    sessions.book_all()

    assert calls == list(joined)


def test_reports_of_counters_that_grow_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent reports every second; the last report before a booking says what all of them say."""
    read: list[object] = []
    sessions, joined = fleet_of(1, lambda _node, _energy: None, StandingClock())
    monkeypatch.setattr(agent_sessions, "check_energy", read.append)
    for total_j in range(2, 50):
        sessions.take(joined["node-0"], energy_of("node-0", float(total_j)))
    sessions.book()

    assert len(read) == 1
    assert sessions.reports["node-0"].energy[0].total_j == 49.0


def test_the_stream_of_a_report_that_cannot_be_ends() -> None:
    """The report is read with the next booking, after the agent was answered for it."""
    sessions, joined = fleet_of(1, lambda _node, _energy: None, StandingClock())
    sessions.take(joined["node-0"], energy_of("node-0", math.inf))
    sessions.book()

    with pytest.raises(InvalidArgument, match="inf"):
        next(aiter(joined["node-0"].responses()).__anext__().__await__())  # nothing to wait for
