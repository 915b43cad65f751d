"""The state: watchers miss no zone's latest value, and readers' snapshots never change."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from services.carbon.core.model import Intensity, Sample
from services.carbon.core.monitor import Monitor
from services.carbon.core.sources.trace import TraceSource
from services.carbon.runtime.grid_state import GridState, update_zone
from services.kit.errors import InvalidArgument, NotFound, Unavailable
from tests.support.virtual_clock import VirtualClock

START = datetime(2022, 4, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
LATER = TraceSource("t", (Sample(START + HOUR, 100.0), Sample(START + 2 * HOUR, 50.0)), loop=False)


def monitor(zone: str, source: TraceSource) -> Monitor:
    return Monitor(zone, source, START, signal="average", average_window=24 * HOUR)


@pytest.fixture
def state() -> GridState:
    """Zone A has a value for ever; B's trace begins in an hour."""
    return GridState(
        {
            "B": monitor("B", LATER),
            "A": monitor("A", TraceSource("static", (Sample(START, 7.0),), loop=False)),
        }
    )


def value(zone: str, intensity: float, hour: int) -> Intensity:
    return Intensity(zone, "average", Sample(START + hour * HOUR, intensity), 100.0, "test")


async def following(watch: AsyncIterator[tuple[Intensity, ...]]) -> list[tuple[str, float]]:
    """Return zone and intensity of each item of the next message."""
    return [(item.zone, item.sample.intensity_gco2e_per_kwh) for item in await anext(watch)]


async def test_a_watch_begins_with_the_zones_that_have_a_value(state: GridState) -> None:
    assert await following(state.watch([])) == [("A", 7.0)]


async def test_a_snapshot_may_be_empty(state: GridState) -> None:
    """The watcher learns at once that it is connected, and that there is nothing yet."""
    assert await following(state.watch(["B"])) == []


async def test_a_slow_watcher_finds_the_latest_of_each_zone_once(state: GridState) -> None:
    watch = state.watch([])
    await anext(watch)
    for hour in range(1, 100):
        state.publish(value("A", hour, hour))
        state.publish(value("B", hour * 2, hour))

    assert await following(watch) == [("A", 99.0), ("B", 198.0)]
    state.close()
    assert [item async for item in watch] == []


async def test_a_watch_sends_only_the_requested_zones(state: GridState) -> None:
    watch = state.watch(["B"])
    await anext(watch)
    state.publish(value("A", 1, 1))
    state.publish(value("B", 2, 1))

    assert await following(watch) == [("B", 2.0)]


async def test_close_ends_a_watch_after_the_last_news(state: GridState) -> None:
    watch = state.watch([])
    await anext(watch)
    state.publish(value("A", 1, 1))
    state.close()

    assert [[item.zone for item in news] async for news in watch] == [["A"]]


async def test_what_a_reader_holds_never_changes(state: GridState) -> None:
    held = state.latest
    before = dict(held)
    state.publish(value("A", 1, 1))

    assert held == before != state.latest


async def test_unknown_zones_are_reported_with_the_known_ones(state: GridState) -> None:
    with pytest.raises(NotFound, match="there are A, B"):
        state.intensity("C")
    with pytest.raises(NotFound, match="there are A, B"):
        await anext(state.watch(["A", "C"]))
    with pytest.raises(InvalidArgument, match="zone is required: one of A, B"):
        state.intensity("")
    with pytest.raises(Unavailable, match="'B' has no value yet"):
        state.intensity("B")


async def test_a_follower_publishes_each_change_at_its_instant_and_ends_after_the_last() -> None:
    """In virtual time: nothing before a change is due, and the state is complete with the first."""
    clock, watched = VirtualClock(START), monitor("B", LATER)
    state = GridState({"B": watched})
    async with asyncio.TaskGroup() as tasks:
        follower = tasks.create_task(update_zone(watched, state, clock), name="follow")
        complete = tasks.create_task(state.complete(), name="complete")
        await clock.advance(3599)
        assert (state.latest, complete.done()) == ({}, False)
        await clock.advance(1)
        assert state.intensity("B").sample == Sample(START + HOUR, 100.0)
        assert complete.done()
        await clock.advance(3600)
        assert state.intensity("B").sample == Sample(START + 2 * HOUR, 50.0)
        assert follower.done()
