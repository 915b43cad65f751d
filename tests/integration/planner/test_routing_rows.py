"""The stored routing table is the one saved last, whatever part of it was written."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1.records import Instance, ModelRoutes, RoutingTable
from services.kit.errors import Unavailable
from services.kit.rpc.record_mapping import from_message
from services.planner.adapters.store import Store, open_store
from services.planner.adapters.store.tables import meta, put
from services.planner.adapters.wire.convert import routing_to

LARGE, SMALL = 1500, 3


def instance(number: int, port: int = 0) -> Instance:
    return Instance(f"10.0.0.1:{port}", f"s-{number}", "large", 0.9, 1e-3, 8, "DE", 1.1)


def table() -> RoutingTable:
    return RoutingTable(
        revision=7,
        plan_version=3,
        models=tuple(
            ModelRoutes(name, "top-1", 0.1, 0.95, "fastest", tuple(map(instance, range(count))))
            for name, count in (("a/1", LARGE), ("b", SMALL))
        ),
        term=2,
    )


def moved(before: RoutingTable, place: int, port: int) -> RoutingTable:
    """Return the next table, in which a worker of the large model listens elsewhere."""
    large, *others = before.models
    instances = list(large.instances)
    instances[place] = replace(instances[place], endpoint=f"10.0.0.1:{port}")
    models = (replace(large, instances=tuple(instances)), *others)
    return replace(before, revision=before.revision + 1, models=models)


def changed(before: RoutingTable, draw: random.Random) -> RoutingTable:
    """Return a next table, of any kind."""
    large, small = before.models
    kind = draw.randrange(8)
    if kind < 4:
        found = before
        for _ in range(draw.choice((1, 2, 9))):
            found = moved(found, draw.randrange(len(large.instances)), draw.randrange(9999))
        return found
    if kind == 4:
        large = replace(large, instances=large.instances[draw.randrange(1, 200) :])
    elif kind == 5:
        large = replace(large, instances=tuple(map(instance, range(draw.randrange(1000, LARGE)))))
    elif kind == 6:
        small = replace(small, discipline=draw.choice(("fcfs", "edf")))
    term = before.term + (kind == 7)
    return RoutingTable(before.revision + 1, draw.randrange(9), (large, small), term)


@pytest.fixture
async def store(database: Path | str) -> AsyncIterator[Store]:
    async with open_store(database) as opened:
        yield opened


async def keys(store: Store) -> set[str]:
    """Return the keys of the table's rows."""
    async with store.connection.transaction() as connection:
        found = await connection.scalars(select(meta.c.key).where(meta.c.key.startswith("routing")))
        return set(found)


async def stored_whole(store: Store) -> RoutingTable:
    """Return the table that planners read which know no parts."""
    async with store.connection.transaction() as connection:
        value = await connection.scalar(select(meta.c.value).where(meta.c.key == "routing"))
    return from_message(plan_pb2.RoutingTable.FromString(value or b""), RoutingTable)


def segments(said: RoutingTable) -> set[str]:
    return {each.segment_id for routes in said.models for each in routes.instances}


@pytest.mark.parametrize("seed", range(3))
async def test_after_any_changes_the_table_saved_last_is_read(
    database: Path | str, seed: int
) -> None:
    """Another planner reads all of the segments, and so does one from before parts."""
    draw, said = random.Random(seed), table()
    for _ in range(6):
        async with open_store(database) as store:
            for _ in range(draw.randrange(1, 6)):
                said = changed(said, draw)
                await store.save_routing(said)
                assert await store.routing() == said
                whole = await stored_whole(store)
                assert segments(whole) == segments(said)


async def test_of_a_large_table_a_part_is_written_and_a_small_one_as_a_whole(store: Store) -> None:
    first = table()
    await store.save_routing(first)
    await store.save_routing(moved(first, 300, 1))

    assert await stored_whole(store) == first
    assert await keys(store) == {"routing", "routing/2.7/", "routing/2.7/a/1/256"}

    small = replace(first, models=first.models[1:])
    await store.save_routing(small)

    assert await stored_whole(store) == small
    assert await keys(store) == {"routing"}


async def test_parts_of_another_table_than_the_stored_one_are_not_read(store: Store) -> None:
    """A planner from before parts has led meanwhile, and wrote its table beside them."""
    await store.save_routing(table())
    await store.save_routing(moved(table(), 300, 1))
    others = replace(moved(table(), 4, 4), term=3)
    async with store.connection.transaction() as connection:
        await put(connection, "routing", routing_to(others).SerializeToString())

    assert await store.routing() == others


async def test_a_table_that_may_not_have_been_written_is_followed_by_a_whole_one(
    tmp_path: Path,
) -> None:
    """The commit fails: which of two tables the rows say is not known until it is read again."""
    async with open_store(tmp_path / "planner.sqlite3") as store:
        first = table()
        await store.save_routing(first)
        connection = store.connection._connection
        assert connection is not None

        def fail(_: object) -> None:
            raise OperationalError("COMMIT", {}, Exception("disk I/O error"))

        event.listen(connection.sync_engine, "commit", fail)
        second = moved(first, 300, 1)
        with pytest.raises(Unavailable):
            await store.save_routing(second)
        event.remove(connection.sync_engine, "commit", fail)
        kept = await store.routing()
        third = moved(second, 301, 2)
        await store.save_routing(third)

        assert kept in {first, second}
        assert await store.routing() == await stored_whole(store) == third
