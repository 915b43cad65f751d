"""A reader that requests every plan gets every plan, in order and once."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.records import Plan, RoutingTable
from services.kit.broadcast import Broadcast
from services.planner.adapters.wire.streams import without_gaps
from services.planner.core.routing_table import Announcement
from tests.support.examples import examples
from tests.support.planner.plans import plan


class Stored:
    """Plans 1, 2, ... as a database has them."""

    def __init__(self, newest: int = 0) -> None:
        self.plans = [plan(version, []) for version in range(1, newest + 1)]

    async def after(self, version: int, limit: int) -> list[Plan]:
        """At most `limit` plans above a version."""
        await asyncio.sleep(0)
        return [each for each in self.plans if each.version > version][:limit]

    def add(self) -> Announcement:
        """Write one more plan; return its announcement."""
        self.plans.append(plan(len(self.plans) + 1, []))
        return said(len(self.plans))


def said(version: int, revision: int = 0) -> Announcement:
    table = RoutingTable(revision, version, ())
    return Announcement(plan(version, []) if version else None, table)


async def announced(versions: Iterable[int]) -> AsyncIterator[Announcement]:
    for version in versions:
        yield said(version)


def version_of(announcement: Announcement) -> int:
    assert announcement.plan is not None
    return announcement.plan.version


@examples(1)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=6).map(sorted), st.integers(0, 400))
def test_what_is_left_out_of_the_announcements_is_replayed(heard: list[int], seen: int) -> None:
    seen = min(seen, heard[-1])

    async def replay() -> list[int]:
        replayed = without_gaps(announced(heard), Stored(heard[-1]).after, seen)
        return [version_of(each) async for each in replayed]

    versions = asyncio.run(replay())
    assert sorted(set(versions) - {seen}) == list(range(seen + 1, heard[-1] + 1))
    assert versions == sorted(versions)
    assert all(versions.count(each) <= max(1, heard.count(each)) for each in versions)


async def test_a_reader_that_has_seen_all_gets_the_present_once() -> None:
    replayed = without_gaps(announced([5]), Stored(5).after, 5)

    assert [version_of(each) async for each in replayed] == [5]


async def test_what_is_stored_waits_for_its_announcement() -> None:
    """Plan 3 is written a moment before it is announced: no reader gets it early, or twice."""
    replayed = without_gaps(announced([2, 3]), Stored(3).after, 0)

    assert [version_of(each) async for each in replayed] == [1, 2, 3]


async def test_versions_that_the_database_lacks_do_not_hold_the_reader_up() -> None:
    stored = Stored(5)
    del stored.plans[2]
    replayed = without_gaps(announced([5]), stored.after, 1)

    assert [version_of(each) async for each in replayed] == [2, 4, 5]


async def test_before_the_first_plan_only_the_routes_are_sent() -> None:
    replayed = without_gaps(announced([0, 1]), Stored(1).after, 0)

    assert [each.plan and each.plan.version async for each in replayed] == [None, 1]


async def test_a_slow_reader_beside_a_fast_writer_misses_no_plan() -> None:
    """The board keeps only the newest announcement; what it skips comes from the store."""
    stored = Stored()
    board: Broadcast[Announcement] = Broadcast(said(0))
    versions: list[int] = []

    async def write() -> None:
        for number in range(300):
            board.publish(stored.add())
            if number % 7 == 0:
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        async for each in without_gaps(board.follow(), stored.after, 0):
            if each.plan is not None:
                versions.append(each.plan.version)
                await asyncio.sleep(0.001)
                if each.plan.version == 300:
                    break

    assert versions == list(range(1, 301))
