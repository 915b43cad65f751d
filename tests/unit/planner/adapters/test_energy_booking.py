"""Energy that agents report is booked for all nodes together, and none of it twice or never."""

from collections.abc import Mapping

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2
from services.kit import config
from services.kit.clock import RealClock
from services.kit.rpc import Caller
from services.planner.adapters.agent_sessions import AgentSessions
from services.planner.change_event import ChangeEvent
from services.planner.core.accounting.accountant import Accountant
from services.planner.core.accounting.counters import EnergyCounters
from services.planner.core.accounting.site import Site
from services.planner.core.fleet import Fleet
from services.planner.core.online_search.counter_readings import CounterReadings
from tests.support.fake_agent import Agent


def booked(
    *reports: tuple[int, float], calls: list[str] | None = None, forget: bool = False
) -> float:
    """Return the energy that is booked of one GPU's reports at once, J.

    Args:
        reports: When the agent's account began, s, and its total, J.
        calls: Takes the node's name for each booking.
        forget: Whether the node is forgotten before.
    """
    accountant = Accountant(lambda node: Site(node, "Z", 1.2, 100.0))

    def account(node: str, told: Mapping[str, EnergyCounters]) -> None:
        accountant.read(node, told)
        if calls is not None:
            calls.append(node)

    fleet = Fleet({"node-a": config.Node(zone="Z", control=True)}, 0.0)
    sessions = AgentSessions(
        fleet, account, CounterReadings(), RealClock(), ChangeEvent(), models={"digits"}
    )
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
    """Its agent lost its meters: the new ones count from zero."""
    assert booked((1, 1000.0), (1, 1500.0), (2, 30.0), (2, 40.0)) == 540.0


def test_what_is_not_booked_of_a_node_goes_with_it() -> None:
    """A node that is forgotten is booked before; what comes between is of no node."""
    calls: list[str] = []

    assert booked((1, 1000.0), (1, 3000.0), calls=calls, forget=True) == 0.0
    assert calls == ["node-a"]
