"""Values that readers of a broadcast see."""

import asyncio

from services.kit.broadcast import Broadcast


async def test_a_slow_reader_sees_the_newest_value_only() -> None:
    board = Broadcast(0)
    reader = board.follow()
    assert await anext(reader) == 0
    board.publish(1)
    board.publish(2)
    assert await anext(reader) == 2


async def test_a_close_ends_readers_after_the_newest_value() -> None:
    board = Broadcast(0)
    seen: list[int] = []

    async def read() -> None:
        seen.extend([value async for value in board.follow()])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        await asyncio.sleep(0)
        board.publish(1)
        board.close()
        board.publish(2)
    assert seen == [0, 1]
    assert [value async for value in board.follow()] == [1]


async def test_until_waits_for_a_value_that_holds() -> None:
    board = Broadcast(0)
    async with asyncio.TaskGroup() as tasks:
        found = tasks.create_task(board.until(lambda value: value > 1))
        for value in (1, 2):
            await asyncio.sleep(0)
            board.publish(value)
    assert found.result() == 2
