"""The batch service's durable state, in SQLite and in PostgreSQL."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.batch.v1.records import Batch, BatchState, File
from services.batch.adapters.store import HOLD_S, Piece, Result, Store
from services.batch.core.lines import Usage
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from tests.support.postgres import Postgres
from tests.support.virtual_clock import VirtualClock

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def batch(id_: str = "batch_1", owner: str = "ada", **given: Any) -> Batch:
    fields: dict[str, Any] = {"created_at": NOON, "window": timedelta(hours=24), **given}
    state = BatchState.VALIDATING
    endpoint = "/v1/completions"
    return Batch(id=id_, owner=owner, endpoint=endpoint, input_file_id="f", state=state, **fields)


def piece(number: int, lines: int = 2) -> Piece:
    return Piece("batch_1", number, number * 100, 90, 1 + number * lines, lines)


def result(line: int, *, failed: bool = False, text: str = "r") -> Result:
    usage = Usage(10, 5, 2.0, 0.5)
    return Result("batch_1", line, failed, f"{text}{line}".encode(), usage)


async def begun(store: Store, pieces: Sequence[Piece], lines: int) -> None:
    await store.add(batch(), 100, 9)
    await store.cut(pieces, [])
    state, within = BatchState.IN_PROGRESS, (BatchState.VALIDATING,)
    assert await store.change("batch_1", state, within=within, lines=lines)


async def test_results_are_counted_once_and_leave_with_their_piece(database: Path | str) -> None:
    """A line that is answered twice keeps its first result, and its cost counts once."""
    async with Store.opened(database, VirtualClock(NOON)) as store:
        await begun(store, [piece(0), piece(1)], 4)
        first, second = await store.claim("batch_1", 5)
        await store.write([result(1), result(2, failed=True)], [first])
        await store.write([result(1, text="again"), result(3)], [])
        found = await store.batch("batch_1", "ada")
        lines = await store.results("batch_1", 0, 10)

        assert await store.pieces_left("batch_1", held=False) == 1
        await store.let_go()
        assert await store.claim("batch_1", 5) == {second: {3}}

    assert (found.completed, found.failed) == (2, 1)
    assert (found.prompt_tokens, found.output_tokens) == (30, 15)
    assert (found.energy_j, found.carbon_gco2e) == (6.0, 1.5)
    assert lines == [(1, b"r1"), (2, b"r2"), (3, b"r3")]


async def test_the_account_says_what_answers_added_and_what_they_would_have(
    database: Path | str,
) -> None:
    """By owner, beside the grid of the batch's beginning and replicas of its own; noted once."""
    async with Store.opened(database, VirtualClock(NOON)) as store:
        await begun(store, [piece(0)], 2)
        await store.add(batch("batch_2", owner="bob"), 100, 9)
        await store.begin_account("batch_1", 360.0, 5.0)
        await store.begin_account("batch_1", 999.0, 9.0)
        usage = Usage(10, 5, 4.0, 0.4, 2.0, 0.2)
        await store.write([Result("batch_1", line, False, b"", usage) for line in (1, 2)], [])
        start_s = NOON.timestamp()
        found = await store.account(None, start_s, start_s + 1)
        mine = await store.batch("batch_1", "ada")

        assert await store.account("bob", start_s + 1, start_s + 2) == []
        assert await store.account("bob", start_s, start_s + 1) == found[1:]

    ada, bob = found
    assert (ada.owner, ada.batches, ada.completed, ada.energy_j) == ("ada", 1, 2, 8.0)
    assert (bob.owner, bob.completed, bob.at_once_gco2e) == ("bob", 0, 0.0)
    assert ada.carbon_marginal_gco2e == 0.4
    assert ada.at_once_gco2e == mine.at_once_gco2e == pytest.approx(4.0 * 360 / 3.6e6)
    assert ada.own_pool_gco2e == mine.own_pool_gco2e == pytest.approx(10.0 * 360 / 3.6e6)


async def test_a_piece_is_of_one_service_until_its_hold_ends(postgres: Postgres) -> None:
    """Several services share a PostgreSQL database; what a killed one held is taken up again."""
    clock, url = VirtualClock(NOON), postgres.database()
    async with Store.opened(url, clock) as one, Store.opened(url, clock) as other:
        await begun(one, [piece(number) for number in range(6)], 12)
        ours, theirs = await one.claim("batch_1", 4), await other.claim("batch_1", 4)
        assert [each.number for each in ours] == [0, 1, 2, 3]
        assert [each.number for each in theirs] == [4, 5]

        assert await one.hold("batch_1")
        assert not await other.hold("batch_1")
        await clock.advance(HOLD_S / 2)
        await one.renew()
        await clock.advance(HOLD_S / 2 + 1)
        again = await other.claim("batch_1", 9)
        assert [each.number for each in again] == [4, 5]
        await clock.advance(HOLD_S + 1)
        assert len(await other.claim("batch_1", 9)) == 6
        assert await other.hold("batch_1")


async def test_what_a_service_held_is_free_when_it_ends(database: Path | str) -> None:
    """The next one waits for nothing."""
    async with Store.opened(database, VirtualClock(NOON)) as store:
        await begun(store, [piece(0), piece(1)], 4)
        assert len(await store.claim("batch_1", 9)) == 2
        assert not await store.claim("batch_1", 9)
        await store.let_go()
    async with Store.opened(database, VirtualClock(NOON)) as store:
        assert len(await store.claim("batch_1", 9)) == 2


async def test_files_and_batches_are_of_their_owners(database: Path | str) -> None:
    """Another caller's are not there; a file that a batch reads stays."""
    async with Store.opened(database, VirtualClock(NOON)) as store:
        file = File(id="f", owner="ada", name="in", purpose="batch", created_at=NOON)
        await store.add_file(file)
        await store.add(batch(), 100, 9)
        for call in (store.file("f", "eve"), store.batch("batch_1", "eve")):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(FailedPrecondition, match="batch_1"):
            await store.delete_file("f", "ada")

        assert await store.list_files("eve", limit=9) == []
        assert [each.id for each in await store.list_batches(None, limit=9)] == ["batch_1"]
        assert await store.batch("batch_1", None) == batch()


async def test_a_batch_ends_with_its_files_and_nothing_of_it_is_left(database: Path | str) -> None:
    """One transaction; ended twice it stays as the first has left it."""
    async with Store.opened(database, VirtualClock(NOON)) as store:
        await begun(store, [piece(0)], 2)
        await store.write([result(1), result(2)], [])
        output = File(id="o", owner="ada", purpose="batch_output", created_at=NOON)
        ended = await store.end("batch_1", BatchState.COMPLETED, {"output_file_id": output})
        again = await store.end("batch_1", BatchState.EXPIRED, {})

        assert ended is not None
        assert (ended.output_file_id, ended.ended_at) == ("o", NOON)
        assert again is None
        assert await store.results("batch_1", 0, 9) == []
        assert await store.pieces_left("batch_1", held=False) == 0
        assert (await store.file("o", "ada")).purpose == "batch_output"


async def test_more_lines_than_a_caller_may_have_are_refused(database: Path | str) -> None:
    """Lines of batches that have not ended count; another caller's do not."""
    async with Store.opened(database, VirtualClock(NOON)) as store:
        await begun(store, [piece(0)], 50)
        with pytest.raises(ResourceExhausted, match="max_waiting_lines"):
            await store.add(batch("batch_2"), 50, 9)
        await store.add(batch("batch_3", "eve"), 50, 9)

        assert await store.waiting("ada", "") == (50, 0)
        assert await store.waiting("ada", "batch_1") == (0, 0)


async def test_texts_that_a_database_cannot_hold_are_refused(database: Path | str) -> None:
    """A NUL is an error of the caller's, or no such batch; never one of ours."""
    async with Store.opened(database, VirtualClock(NOON)) as store:
        for id_ in ("a\0b", "\0"):
            with pytest.raises((NotFound, InvalidArgument)):
                await store.batch(id_, "ada")


async def test_one_sqlite_file_has_one_service(tmp_path: Path) -> None:
    """A second one is refused by name instead of sending lines twice."""
    path = tmp_path / "batch.sqlite3"
    async with Store.opened(path, VirtualClock(NOON)):
        with pytest.raises(FailedPrecondition, match="another batch service"):
            async with Store.opened(path, VirtualClock(NOON)):
                pass
