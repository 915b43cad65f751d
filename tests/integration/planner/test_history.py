"""History in the database: SQLite and PostgreSQL alike, over restarts, outages and clock jumps."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.planner.v1.records import FleetHistory, HistoryPoint
from services.kit import config
from services.kit.errors import InvalidArgument, Unavailable
from services.planner.adapters.store import open_store
from services.planner.change_event import ChangeEvent
from services.planner.control.history import History
from services.planner.core.accounting.accountant import Metered
from services.planner.core.accuracy_mean.ledger import AccuracyLedger
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.fleet import Fleet, Node, NodeGpu
from services.planner.core.forecast.demand import Demand
from services.planner.core.history.points import LEVELS, MINUTE, Level, since_s
from services.planner.core.power.budgets import PowerBudgets
from services.planner.core.service_level import ServiceLevel
from tests.support.planner import fleets

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
POWER_W = 100.0
SITES = {"hall": config.Site(nodes=("node-a",), power_budget_w=400.0, host_power_w=60.0)}


@dataclass
class Clock:
    """A wall clock that a test sets, and a monotonic one that never falls."""

    at: datetime = START
    passed_s: float = 0.0

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.passed_s

    async def sleep(self, delay_s: float) -> None:
        raise NotImplementedError


@dataclass
class Planner:
    """A planner that meters one GPU of 100 W every 5 s."""

    history: History
    clock: Clock
    ledger: AccuracyLedger
    booked_j: float = field(default=0.0)

    async def run(self, length_s: float) -> None:
        for _ in range(round(length_s / 5)):
            self.clock.at += timedelta(seconds=5)
            self.clock.passed_s += 5
            energy_j = 5 * POWER_W
            self.booked_j += energy_j
            metered = Metered(5.0, {"GPU-1": energy_j}, energy_j, 1.0, 2 * energy_j, 2.0)
            self.history.meter(metered)
            await self.history.step()

    async def read(self, hours: float = 24, step_s: int = 0) -> list[HistoryPoint]:
        since = self.clock.at - timedelta(hours=hours)
        return [each async for _, some in self.history.read(since, None, step_s) for each in some]


@asynccontextmanager
async def planning(database: Path | str, clock: Clock) -> AsyncIterator[Planner]:
    state = ClusterState(
        clock,
        ChangeEvent(),
        (),
        Fleet({"node-a": config.Node(zone="Z", pue=1.5)}, 0.0),
        Demand({}, now_s=clock.monotonic),
        ServiceLevel({}),
        config.Objective(),
        "exact",
        intensity_gco2e_per_kwh={"Z": 200.0},
        power=PowerBudgets(SITES),
    )
    state.fleet.report(
        Node("node-a", "Z", (NodeGpu("GPU-1", fleets.gpu_type(), ()),), ()), clock.monotonic()
    )
    async with open_store(database) as store:
        history = History(store, clock, state)
        await history.restore()
        yield Planner(history, clock, state.accuracy.ledger)


def energies(points: list[HistoryPoint]) -> dict[int, float]:
    return {since_s(point): point.fleet.energy_j for point in points}


async def test_every_length_has_the_same_energy(database: Path | str) -> None:
    """Minutes, ten minutes and hours of three hours, the last unfinished; of a site, too."""
    async with planning(database, Clock()) as planner:
        await planner.run(2.9 * 3600)
        minutes, tens, hours = [await planner.read(3, level.step_s) for level in LEVELS]

    assert [len(minutes), len(tens), len(hours)] == [174, 18, 3]
    for points in (minutes, tens, hours):
        assert sum(energies(points).values()) == pytest.approx(planner.booked_j)
        for point in points:
            assert point.fleet.energy_j == pytest.approx(POWER_W * point.fleet.metered_s)
            zone = point.zones["Z"]
            assert zone.intensity_gco2e_s_per_kwh == pytest.approx(200 * zone.known_s)
            site = point.sites["hall"]
            assert site.metered_s == point.fleet.metered_s
            assert site.energy_j == pytest.approx(1.5 * (POWER_W + 60) * site.metered_s)
            assert site.limited_s == zone.known_s
            assert site.limit_j == pytest.approx(400 * site.limited_s)


async def test_a_restart_leaves_no_trace(database: Path | str) -> None:
    """Stopped in the middle of a minute, and started again at once: as if it had gone on."""
    clock = Clock()
    async with planning(database, clock) as planner:
        await planner.run(1250)
        await planner.history.save()
    async with planning(database, clock) as planner:
        await planner.run(2750)
        found = await planner.read(2, 600)

    assert energies(found) == pytest.approx(
        {int(START.timestamp()) + 600 * n: 60_000.0 for n in range(6)}
        | {int(START.timestamp()) + 3600: 40_000.0}
    )


async def test_time_without_a_planner_is_a_gap(database: Path | str) -> None:
    """No point, which is not one of zeros; the ten minutes before are summed up all the same."""
    clock = Clock()
    async with planning(database, clock) as planner:
        await planner.run(900)
        await planner.history.save()
    clock.at += timedelta(hours=2)
    async with planning(database, clock) as planner:
        await planner.run(600)
        found = energies(await planner.read(3, 600))

    begin_s = int(START.timestamp())
    assert sorted(found) == [begin_s + after_s for after_s in (0, 600, 8100 // 600 * 600, 8400)]
    assert sum(found.values()) == pytest.approx(150_000.0)


async def test_the_database_is_away_for_a_while(database: Path | str) -> None:
    """Minutes wait, are read meanwhile, and are written once, though the commit may have been."""
    async with planning(database, Clock()) as planner:
        await planner.run(120)
        save = planner.history._store.history.save

        async def lost(*args: Any) -> None:
            await save(*args)
            raise Unavailable("the connection broke within the commit")

        planner.history._store.history.save = lost  # type: ignore[method-assign,assignment]
        await planner.run(300)
        meanwhile = await planner.read(1)
        planner.history._store.history.save = save  # type: ignore[method-assign]
        await planner.run(180)
        found = await planner.read(1)

    assert sum(energies(meanwhile).values()) == pytest.approx(42_000.0)
    assert set(energies(found).values()) == {6000.0}
    assert len(found) == 10


@pytest.mark.parametrize("jump_s", [-7200, -86_400 * 365, 86_400 * 365 * 50])
async def test_a_clock_that_jumps_and_comes_back_costs_no_history(
    database: Path | str, jump_s: int
) -> None:
    clock = Clock()
    async with planning(database, clock) as planner:
        await planner.run(1200)
        clock.at += timedelta(seconds=jump_s)
        await planner.run(600)
        clock.at -= timedelta(seconds=jump_s)
        await planner.run(1200)
        found = energies(await planner.read(0.8, 600))

    begin_s = int(START.timestamp())
    assert found[begin_s] == found[begin_s + 600] == pytest.approx(60_000.0)
    assert found[begin_s + 2400] == pytest.approx(60_000.0)


async def test_rows_are_bounded_and_those_near_now_stay(
    database: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the clock does, an hour's minutes are the most above the limit."""
    levels = (Level(60, 90), Level(600, 12), Level(3600, 3))
    monkeypatch.setattr("services.planner.control.history.LEVELS", levels)
    clock = Clock()
    async with planning(database, clock) as planner:
        for jump_s in (0, 10**8, -2 * 10**8, 10**8, 0):
            clock.at += timedelta(seconds=jump_s)
            await planner.run(4500)
        store = planner.history._store.history
        kept = {level.step_s: await store.read(level.step_s, 0, 2**40) for level in levels}

    assert len(kept[60]) <= 90 + 60
    assert len(kept[600]) <= 12 + 6
    assert len(kept[3600]) <= 3 + 1
    now_s = clock.at.timestamp()
    assert {now_s // 60 * 60 - 60 * n for n in range(2, 60)} <= {since_s(p) for p in kept[60]}


async def test_a_window_that_ends_before_it_begins_is_refused(database: Path | str) -> None:
    async with planning(database, Clock()) as planner:
        with pytest.raises(InvalidArgument, match="until"):
            async for _ in planner.history.read(START, START - timedelta(hours=1)):
                pass


async def test_points_come_back_as_they_were(database: Path | str) -> None:
    """Every figure to the last bit: both databases have the same bytes."""
    point = HistoryPoint(since=START, fleet=FleetHistory(0.1, 1e300, 5e-324))
    async with open_store(database) as store:
        at_s = since_s(point)
        await store.history.save({(MINUTE.step_s, at_s): point})
        assert await store.history.read(MINUTE.step_s, at_s, at_s + 1) == [point]
        assert await store.history.newest(MINUTE.step_s, at_s) == at_s
        assert await store.history.newest(MINUTE.step_s, at_s - 1) is None


async def test_the_hours_behind_the_price_of_accuracy_survive_a_restart(
    database: Path | str,
) -> None:
    """Hours that ended are written as they end; an orderly stop writes the current one as well."""
    clock = Clock()

    def answer(planner: Planner, accuracy: float) -> None:
        now_s = clock.at.timestamp()
        planner.ledger.hold(now_s, intensity={"Z": 100.0}, demand_rps={"m": 2.0})
        planner.ledger.answer(now_s, {"m": 100.0}, {"m": accuracy})

    async with planning(database, clock) as first:
        answer(first, 0.9)
        clock.at += timedelta(hours=1)
        answer(first, 1.0)
        await first.history.step()
    async with planning(database, clock) as killed:  # the first ended without `save`
        assert [hour.accuracy for hour in killed.ledger.hours.values()] == [{"m": 90.0}]
        answer(killed, 0.8)
        await killed.history.save()
    async with planning(database, clock) as last:
        answer(last, 1.0)
        (before, now) = last.ledger.lately(clock.at.timestamp())[-2:]
        assert (before.accuracy, now.accuracy) == ({"m": 80.0}, {"m": 100.0})
        assert before.intensity_gco2e_per_kwh == {"Z": 100.0}
        clock.at += timedelta(hours=1)
        answer(last, 1.0)
        assert [h.accuracy["m"] for h in last.ledger.hours.values()] == [90.0, 180.0]
