"""A worker and several routers at once: credits, callers that go, readers that do not read."""

import asyncio
import math
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.worker.worker_in_process import running
from tests.support.worker.worker_process import (
    Router,
    flat_costs,
    infer_request,
    output,
    routed,
    until,
    work,
)

REQUEST = infer_request([[0, 0]])


# ---- credits -----------------------------------------------------------------------------------


async def use_all(router: Router, waited_s: float, until_credits: int) -> None:
    """Use all credits, as a router does that has a queue, until there are so many."""
    next_id, open_ids = 0, set[int]()
    while router.hello.credits != until_credits:
        free = max(router.hello.credits - len(open_ids), 0)
        works = [work(next_id + number, REQUEST) for number in range(free)]
        for each in works:
            each.waited_s = waited_s
        next_id += free
        open_ids |= {each.id for each in works}
        if works:
            await router.send(*works)
        response = await router.call.read()
        open_ids -= {result.id for result in response.results}
        router.hello.credits = response.credits or router.hello.credits


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf, 1e300, -1e300])
async def test_a_router_that_lies_about_time_ends_no_worker_and_takes_no_others_credit(
    tmp_path: Path, model: Path, figure: float
) -> None:
    """Latencies are counted by size, and credits divided by demand: neither takes any number."""
    async with (
        running(tmp_path, model, batch_size=8) as worker,
        routed(worker.address) as honest,
        AsyncExitStack() as leaving,
    ):
        liar = await leaving.enter_async_context(routed(worker.address))
        waited, left = work(1, REQUEST), work(2, REQUEST)
        waited.waited_s = left.remaining_s = figure
        await liar.send(waited, left)
        await liar.wait_for(1, 2)
        answer = await honest.infer(REQUEST)
        await leaving.aclose()
        await use_all(honest, waited_s=0.5, until_credits=8)

    assert not answer.status


async def test_streams_share_the_credits_and_who_needs_more_gets_more(
    tmp_path: Path, model: Path
) -> None:
    """All credits to the only stream, then nearly all to the busy one; and all to the last one."""
    async with (
        running(tmp_path, model, batch_size=8) as worker,
        AsyncExitStack() as leaving,
        routed(worker.address) as busy,
    ):
        assert busy.hello.credits == 8
        idle = await leaving.enter_async_context(routed(worker.address))
        await use_all(busy, waited_s=0.5, until_credits=7)
        given = [idle.hello.credits]
        while given[-1] != 1:
            given.append((await idle.call.read()).credits)
        await leaving.aclose()
        await use_all(busy, waited_s=0.5, until_credits=8)

    assert given == sorted(given, reverse=True)


# ---- callers that go ---------------------------------------------------------------------------


async def test_started_work_is_finished_but_not_sent_when_its_caller_goes(
    tmp_path: Path, model: Path
) -> None:
    """The energy of the work is counted all the same: it was spent."""
    costs = flat_costs(1.0, 1.0, batch_size=1)  # half a second to start the second in time
    async with (
        running(tmp_path, model, batch_size=1, costs=costs) as worker,
        routed(worker.address) as router,
    ):
        await router.send(work(1, REQUEST), work(2, REQUEST, remaining_s=1.5))
        await until(lambda: worker.busy)
        await router.send(cancelled=[1])
        cancelled, late = await router.wait_for(1, 2)
        ran = worker.requests

    assert (cancelled.status, late.status) == ("CANCELLED", "DEADLINE_EXCEEDED")
    for result in (cancelled, late):
        assert result.message.endswith("while it was computed")
        assert result.response == b""
        assert result.receipt.energy_j >= 1.0
    assert ran == 2


async def test_neighbours_of_a_failed_batch_do_not_run_again_for_callers_that_are_gone(
    tmp_path: Path, model: Path
) -> None:
    """The batch fails, so each runs alone: all but those whose callers have gone."""
    poisoned = infer_request([[0, 0]], [7])
    costs = flat_costs(1.6, 1.0, batch_size=8)
    async with (
        running(tmp_path, model, batch_size=8, costs=costs) as worker,
        routed(worker.address) as leaving,
        routed(worker.address) as router,
    ):
        await router.send(work(0, REQUEST))
        await until(lambda: worker.busy)
        await router.send(work(1, REQUEST), work(2, poisoned), work(3, REQUEST))
        await router.send(work(4, REQUEST, remaining_s=2.4))
        await until(lambda: len(worker.batcher.queue) == 4)  # streams have no order among them
        await leaving.send(work(1, REQUEST))
        await until(lambda: len(worker.batcher.queue) == 5)
        await until(lambda: worker.requests == 1)  # the others run together, fail, and 1 is first
        await router.send(cancelled=[3])
        leaving.call.cancel()
        results = await router.wait_for(1, 2, 3, 4)
        ran = worker.requests

    assert [r.status for r in results] == ["", "INTERNAL", "CANCELLED", "DEADLINE_EXCEEDED"]
    assert ran == 2


# ---- memory ------------------------------------------------------------------------------------

MEBIBYTE = 2**20
BIG = infer_request([[1.0, 2.0]] * 60_000)  # 0.9 MiB; more items than a batch takes: it runs alone


async def test_a_router_that_sends_more_than_its_bytes_waits_and_loses_nothing(
    tmp_path: Path, model: Path
) -> None:
    """A worker that may hold 4 MiB does not take in 22 MiB at once."""
    most = 0
    async with (
        running(tmp_path, model, intake_bytes=4 * MEBIBYTE, costs=None) as worker,
        routed(worker.address) as router,
    ):

        async def send() -> None:
            for number in range(24):
                await router.send(work(number, BIG))

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, len(worker.batcher.queue))
                await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(look())
            tasks.create_task(send())
            results = await router.wait_for(*range(24))
            looking.cancel()

    assert all(output(result.response, "y")[:2] == [2.0, 3.0] for result in results)
    assert most <= 5


async def test_a_router_that_does_not_read_its_answers_is_not_read_from(
    tmp_path: Path, model: Path
) -> None:
    """Answers pile up to the stream's part; then its work waits at its end. Others go on."""
    async with (
        running(tmp_path, model, intake_bytes=8 * MEBIBYTE, costs=None) as worker,
        routed(worker.address) as deaf,
        routed(worker.address) as other,
    ):

        async def send() -> None:
            for number in range(100):
                await deaf.send(work(number, BIG))

        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(send())
            before = -1
            while before < 1 or before != worker.requests:
                before = worker.requests
                await asyncio.sleep(0.5)
            answered = await other.infer(REQUEST)
            stuck = not sending.done()
            results = await deaf.wait_for(*range(100))

    assert stuck
    assert 1 <= before <= 40
    assert answered.status == ""
    assert {result.status for result in results} == {""}
