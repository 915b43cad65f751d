"""Models and idle sum to nodes and zones, whatever happens to reports on their way."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.accounting.accountant import Accountant
from services.planner.core.accounting.counters import EnergyCounters, ModelEnergy
from services.planner.core.accounting.entries import NAMES, EntryKey, Figures
from tests.support.examples import examples
from tests.support.planner.accounting_sites import RATES, SITES, START_S


class Step(NamedTuple):
    """One GPU's draw in one step, and the fate of the report on it."""

    whose: int
    idle_j: float
    used: Mapping[str, ModelEnergy]
    rest_j: float
    passed_s: float
    report: str


@dataclass
class Meter:
    """A GPU whose truth is known.

    Attributes:
        node, uuid: Names of the node and of the GPU.
        now: Counters of the GPU's agent.
        total_j, used: The truth.
        unreported_j: The part of it that was drawn since its last report that came.
        lost_j: The part of it that its agent lost before it was reported.
    """

    node: str
    uuid: str
    now: EnergyCounters = field(default_factory=lambda: EnergyCounters(1.0, START_S, 0.0))
    total_j: float = 0.0
    unreported_j: float = 0.0
    lost_j: float = 0.0
    used: dict[str, ModelEnergy] = field(default_factory=dict)

    def restart(self) -> None:
        self.now = EnergyCounters(self.now.since_s + 1, self.now.at_s, 0.0)
        self.lost_j, self.unreported_j = self.lost_j + self.unreported_j, 0.0

    def draw(self, step: Step) -> None:
        models = dict(self.now.models or {})
        for model, each in step.used.items():
            models[model] = models.get(model, ModelEnergy()) + each
            self.used[model] = self.used.get(model, ModelEnergy()) + each
        drawn_j = step.idle_j + step.rest_j + sum(each.active_j for each in step.used.values())
        self.total_j += drawn_j
        self.unreported_j += drawn_j
        self.now = EnergyCounters(
            self.now.since_s,
            self.now.at_s + step.passed_s,
            self.now.total_j + drawn_j,
            self.now.idle_j + step.idle_j,
            models,
        )


class World:
    """Nodes, and a planner that hears of them."""

    def __init__(self) -> None:
        places = (("a", "GPU-a"), ("a", "GPU-b"), ("b", "GPU-c"), ("c", "GPU-d"))
        self.meters = [Meter(*place) for place in places]
        self.entries: list[tuple[EntryKey, Figures]] = []
        self.accountant = Accountant(SITES.get)
        self.accountant.rate(RATES)
        for meter in self.meters:
            self.report(meter, meter.now)

    def report(self, meter: Meter, counters: EnergyCounters) -> None:
        self.accountant.book(meter.node, {meter.uuid: counters})

    def take(self, step: Step) -> None:
        meter = self.meters[step.whose]
        before = meter.now
        if step.report == "restarted":
            meter.restart()
        meter.draw(step)
        if step.report == "lost":
            return
        self.report(meter, meter.now)
        meter.unreported_j = 0.0
        match step.report:
            case "sent twice":
                self.report(meter, meter.now)
            case "late":
                self.report(meter, replace(before, at_s=meter.now.at_s))
            case "planner restarted":
                self.write()

    def write(self) -> None:
        """Write a page; a planner that starts goes on from it."""
        self.entries += self.accountant.page().entries.items()
        self.accountant = Accountant(SITES.get, self.accountant.account)
        self.accountant.rate(RATES)

    def end(self) -> None:
        for meter in self.meters:
            self.report(meter, meter.now)
        self.write()

    def sum(self, **where: object) -> Figures:
        """Return the entries with these parts of their keys, added up."""
        return sum(
            (
                figures
                for key, figures in self.entries
                if all(getattr(key, name) == value for name, value in where.items())
            ),
            Figures(),
        )


JOULES = st.floats(0, 1e6)
USED = st.builds(ModelEnergy, JOULES, st.floats(0, 10), st.integers(0, 1000))
REPORTS = ("sent", "sent twice", "late", "lost", "restarted", "planner restarted")
STEPS = st.lists(
    st.builds(
        Step,
        whose=st.integers(0, 3),
        idle_j=JOULES,
        used=st.dictionaries(st.sampled_from("mn"), USED),
        rest_j=JOULES,
        passed_s=st.floats(0, 20_000),
        report=st.sampled_from(REPORTS),
    ),
    max_size=25,
)


def after(steps: list[Step]) -> World:
    world = World()
    for step in steps:
        world.take(step)
    world.end()
    return world


@given(STEPS)
def test_what_nodes_drew_is_booked_once(steps: list[Step]) -> None:
    """Reports come twice, late or never; agents and planner restart.

    Only energy that an agent lost before it reported it is missing.
    """
    world = after(steps)

    for node in SITES:
        own = [meter for meter in world.meters if meter.node == node]
        true_j = sum(meter.total_j - meter.lost_j for meter in own)
        assert world.sum(node=node).energy_j == pytest.approx(true_j, abs=1e-3)
    if not any(meter.lost_j for meter in world.meters):
        for model in "mn":
            true = sum(
                (meter.used.get(model, ModelEnergy()) for meter in world.meters), ModelEnergy()
            )
            found = world.sum(model=model)
            assert found.energy_j == pytest.approx(true.active_j, abs=1e-3)
            assert found.requests == true.requests


@examples(0.4)
@given(STEPS)
def test_every_window_sums_to_the_same_by_model_node_and_zone(steps: list[Step]) -> None:
    """Each hour adds up to one sum, whatever it is added up by."""
    world = after(steps)

    for hour in {key.hour for key, _ in world.entries}:
        whole = world.sum(hour=hour)
        for by, names in (("model", ("", "m", "n")), ("node", SITES), ("zone", ("Y", "Z"))):
            parts = [world.sum(hour=hour, **{by: name}) for name in names]
            assert list(_sums(parts)) == pytest.approx(list(_sums([whole])), abs=1e-6)


@given(STEPS)
def test_what_no_model_used_is_idle_or_unattributed_and_base_draws_it_too(
    steps: list[Step],
) -> None:
    """Idle energy is nothing that a plan saves."""
    idle = after(steps).sum(model="")

    assert idle.energy_j == pytest.approx(idle.idle_j + idle.unattributed_j, abs=1e-6)
    assert idle.carbon_gco2e == pytest.approx(idle.idle_gco2e + idle.unattributed_gco2e, abs=1e-6)
    assert (idle.base_energy_j, idle.base_carbon_gco2e) == (idle.energy_j, idle.carbon_gco2e)


@given(STEPS)
def test_the_total_is_what_the_entries_sum_to(steps: list[Step]) -> None:
    """The account and its pages agree."""
    world = after(steps)
    total, entries = world.accountant.account.total, world.sum()

    assert total.energy_j == pytest.approx(entries.energy_j, abs=1e-3)
    assert total.carbon_gco2e == pytest.approx(entries.carbon_gco2e, abs=1e-6)


@given(STEPS)
def test_embodied_carbon_is_time_times_rate_independent_of_the_holder(steps: list[Step]) -> None:
    world = after(steps)
    passed_s = world.meters[0].now.at_s - START_S

    assert world.sum().embodied_gco2e == pytest.approx(0.001 * passed_s, abs=1e-9)
    assert world.sum(model="m").embodied_gco2e == pytest.approx(0.0005 * passed_s, abs=1e-9)


def _sums(parts: list[Figures]) -> Iterator[float]:
    return (sum(getattr(part, name) for part in parts) for name in NAMES)
