"""Parts of answers on a router's stream: sent as they come, as far as there is room."""

import asyncio

import pytest

from services.gpuagent.worker.core.credits import Share
from services.gpuagent.worker.session import Answer, Session, StreamUpdate
from services.kit.request_cost import Cost


def session(room_bytes: int = 10) -> Session:
    """A stream with one piece of work, number 1, of 4 bytes."""
    made = Session(Share(), room_bytes)
    made.first_credits()
    made.take_in(1, 4)
    return made


def part(text: bytes) -> Answer:
    return Answer(1, response=text, more=True)


async def next_update(stream: Session) -> StreamUpdate:
    news = await stream.next_update()
    assert news is not None
    return news


async def test_parts_leave_in_order_before_the_last_and_the_work_stays_open() -> None:
    stream = session()
    assert await stream.send_part(part(b"a"))
    assert await stream.send_part(part(b"b"))
    first = await next_update(stream)
    assert stream.wants(1)
    assert stream.answer(Answer(1, response=b"c"))

    answers = (*first.answers, *(await next_update(stream)).answers)
    assert [(answer.response, answer.more) for answer in answers] == [
        (b"a", True), (b"b", True), (b"c", False),
    ]  # fmt: skip


async def test_a_part_waits_until_those_before_it_are_sent() -> None:
    stream = session()
    assert await stream.send_part(part(b"1234567890"))
    waiting = asyncio.create_task(stream.send_part(part(b"7")))
    await asyncio.sleep(0)
    assert not waiting.done()

    await next_update(stream)
    await asyncio.sleep(0)
    assert not waiting.done(), "what is being sent still takes its room"
    following = asyncio.create_task(stream.next_update())

    assert await waiting
    news = await following
    assert news is not None
    assert [answer.response for answer in news.answers] == [b"7"]


@pytest.mark.parametrize("gone", ["forsaken", "closed"])
async def test_who_waits_for_room_learns_that_the_part_is_not_wanted(gone: str) -> None:
    stream = session()
    assert await stream.send_part(part(b"1234567890"))
    waiting = asyncio.create_task(stream.send_part(part(b"7")))
    await asyncio.sleep(0)

    if gone == "closed":
        stream.close()
    else:
        stream.cancel({1})

    assert not await asyncio.wait_for(waiting, 5)


async def test_an_answer_whose_client_has_gone_carries_its_cost_alone() -> None:
    """The router still learns what the work took, and its credit is free; the bytes stay here."""
    stream, cost = session(), Cost(1.0, 0.0, "model", 0.0, 0.1, 1)
    stream.cancel({1})
    assert stream.answer(Answer(1, response=b"late", cost=cost))
    assert not stream.answer(Answer(1, response=b"again")), "answered once already"

    (answer,) = (await next_update(stream)).answers
    assert (answer.response, answer.cost) == (b"", cost)
    assert answer.error is not None
    assert answer.error.status == "CANCELLED"
