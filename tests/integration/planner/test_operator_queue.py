"""Orders are taken in turn, answered once, and never lost."""

import asyncio
from functools import partial

import pytest

from services.kit.errors import NotFound, Unavailable
from services.planner.change_event import ChangeEvent
from services.planner.control.operator_queue import OperatorQueue
from services.planner.core.cycle.cycle import Work


async def done(name: str) -> tuple[str, Work | None]:
    return name, None


async def serve(orders: OperatorQueue, count: int) -> None:
    """Take `count` orders, as the reconciler does."""
    for _ in range(count):
        await orders.changed.until(lambda: bool(orders))
        order = orders.take()
        assert order is not None
        await order()


async def test_orders_are_taken_in_the_order_they_came() -> None:
    orders = OperatorQueue(ChangeEvent())
    begun: list[str] = []

    async def note(name: str) -> tuple[str, None]:
        begun.append(name)
        return name, None

    async with asyncio.TaskGroup() as tasks:
        given = [tasks.create_task(orders.give(partial(note, name))) for name in ("a", "b", "c")]
        tasks.create_task(serve(orders, 3))

    assert begun == ["a", "b", "c"]
    assert [task.result() for task in given] == ["a", "b", "c"]


async def test_an_order_wakes_who_waits_for_news() -> None:
    changed = ChangeEvent()
    orders = OperatorQueue(changed)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(orders.give(lambda: done("a")))
        await changed.after(0, 1.0)
        tasks.create_task(serve(orders, 1))

    assert changed.count == 1


async def test_what_is_wrong_with_an_order_goes_to_its_sender_and_not_to_the_loop() -> None:
    orders = OperatorQueue(ChangeEvent())

    async def refuse() -> tuple[str, None]:
        raise NotFound("no plan has version 7")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(orders, 1))
        with pytest.raises(NotFound, match="no plan has version 7"):
            await orders.give(refuse)


async def test_an_order_whose_giver_has_gone_is_not_begun() -> None:
    orders = OperatorQueue(ChangeEvent())
    begun: list[str] = []

    async def note() -> tuple[None, None]:
        begun.append("begun")
        return None, None

    async with asyncio.TaskGroup() as tasks:
        giving = tasks.create_task(orders.give(note))
        await asyncio.sleep(0)
        giving.cancel()
        await asyncio.sleep(0)
        await serve(orders, 1)

    assert begun == []


async def test_no_command_waits_for_a_loop_that_has_ended() -> None:
    orders = OperatorQueue(ChangeEvent())
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_refused(orders))
        await asyncio.sleep(0)
        orders.close()

    assert waiting.result() == "the planner is stopping"
    assert await _refused(orders) == "the planner is stopping"


async def test_a_loop_that_crashes_in_an_order_answers_it_first() -> None:
    orders = OperatorQueue(ChangeEvent())

    async def crash() -> tuple[None, None]:
        raise ZeroDivisionError

    async def loop() -> str:
        try:
            await serve(orders, 1)
        except ZeroDivisionError:
            return "crashed"
        return "went on"

    async with asyncio.TaskGroup() as tasks:
        crashed = tasks.create_task(loop())
        with pytest.raises(Unavailable, match="stopped before the order was carried out"):
            await orders.give(crash)

    assert crashed.result() == "crashed"


async def _refused(orders: OperatorQueue) -> str:
    with pytest.raises(Unavailable) as caught:
        await orders.give(lambda: done("a"))
    return caught.value.message
