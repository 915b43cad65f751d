"""Times that workers take to start, and loads that are provided for so early."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.kit.config import LoadForecast
from services.planner.core.cycle.environment import NodeChange
from services.planner.core.cycle.rollout_executor import RolloutExecutor
from services.planner.core.forecast.boot_times import BootTimes
from services.planner.core.forecast.demand import MOST_GROWTH, ConfiguredLoad, Demand
from services.planner.core.placement.actions import Action, StartSegment, StopSegment
from tests.support.planner import fleets

MODEL = fleets.model()
NAMES = [variant.name for variant in MODEL.variants]


def test_what_was_measured_replaces_what_is_stated() -> None:
    """A longer start counts at once, a shorter one bit by bit: files are not always cached."""
    stated = replace(MODEL, variants=(replace(MODEL.variants[0], load_s=20.0),))
    boots = BootTimes([stated])
    assert boots.longest_s("m") == 0.0
    assert boots.longest_s(stated.name) == 20.0

    boots.observe(stated.name, NAMES[0], 60.0)
    assert boots.longest_s(stated.name) == 60.0
    boots.observe(stated.name, NAMES[0], 20.0)
    assert boots.longest_s(stated.name) == 50.0
    boots.configure([MODEL])
    assert boots.longest_s(MODEL.name) == 50.0
    boots.configure([replace(MODEL, variants=MODEL.variants[1:])])
    assert boots.longest_s(MODEL.name) == 0.0


@pytest.mark.parametrize(("stops", "measured_s"), [(False, 42.0), (True, 0.0)])
def test_a_rollout_measures_starts_that_wait_for_nothing_else(
    stops: bool, measured_s: float
) -> None:
    """A segment that drains beside it takes time that is not the start's."""
    now_s, boots = [0.0], BootTimes([MODEL])
    clock = SimpleNamespace(monotonic=lambda: now_s[0])

    async def perform(_: NodeChange) -> None:
        now_s[0] += 42.0

    kind = SimpleNamespace(model=MODEL.name, variant=NAMES[0])
    start = cast(Action, StartSegment(cast(Any, SimpleNamespace(kind=kind))))
    group: Sequence[Action] = [start, StopSegment("s", "g")] if stops else [start]
    state, environment = SimpleNamespace(clock=clock, boots=boots), SimpleNamespace(perform=perform)
    change = NodeChange("1.n", "n", [[(action, 0.0) for action in group]], 60.0)

    executor = RolloutExecutor(cast(Any, state), cast(Any, environment))
    with pytest.raises(StopIteration, match=r"^$"):  # it ended, without a failure
        executor._perform(change).send(None)

    assert boots.longest_s(MODEL.name) == measured_s


@pytest.mark.parametrize("boot_s", [0.0, 120.0, 600.0])
def test_a_growing_load_is_provided_for_as_it_will_be_once_workers_have_started(
    boot_s: float,
) -> None:
    """A load that grows by a tenth a minute: two minutes of booting are two tenths more."""
    now_s = [1_800_000_000.0]
    demand = Demand(
        {"m": ConfiguredLoad(1.0, 1.0)},
        LoadForecast(interval_s=60.0),
        lambda: now_s[0],
        boot_s=lambda _: boot_s,
    )
    for second in range(60 * 40):
        now_s[0] += 1.0
        demand.observe("r", {"m": round(100 * 1.1 ** (second / 60))}, 1.0)
    rate_rps = demand.rates_rps()["m"]
    forecast = demand.forecasts()["m"]

    growth = min(1.1 ** (boot_s / 60), MOST_GROWTH)
    assert rate_rps == pytest.approx(forecast.high_rps * growth, rel=0.12)


def test_a_falling_load_is_not_provided_for_any_earlier() -> None:
    now_s = [1_800_000_000.0]
    demand = Demand(
        {"m": ConfiguredLoad(1.0, 1.0)},
        LoadForecast(interval_s=60.0),
        lambda: now_s[0],
        boot_s=lambda _: 600.0,
    )
    for second in range(60 * 40):
        now_s[0] += 1.0
        demand.observe("r", {"m": round(1000 * 0.95 ** (second / 60))}, 1.0)

    assert demand.rates_rps()["m"] <= 1.3 * 1000 * 0.95**39
