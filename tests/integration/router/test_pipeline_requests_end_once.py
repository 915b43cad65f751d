"""Pipelines whose workers, agents and planner are killed at random: every request ends once."""

import asyncio
from random import Random

import pytest

from services.router.core.model import POISON_DEATHS, Limits, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import DISCIPLINES, RequestQueue
from tests.support.router.chaos import MODELS, PATIENCE_S, Chaos
from tests.support.router.pipeline_chaos import ENDPOINTS, PipelineWorld, poisoned
from tests.support.virtual_loop import run

REQUESTS, RATE_RPS, PAUSE_S = 3_000, 300.0, 0.1
REASONS = {
    "DEADLINE",
    "OVERLOADED",
    "QUEUE_FULL",
    "MODEL_NOT_FOUND",
    "MODEL_REMOVED",
    "NO_WORKER_ANSWERED",
    "RETRIES_SPENT",
    "WORKERS_DIED",
}


async def troubled(seed: int, limits: Limits) -> tuple[PipelineWorld, Chaos]:
    """Send the load through trouble, then let what is behind the router end its work."""
    rng = Random(seed)
    world = PipelineWorld(limits)
    chaos = Chaos(world, rng, ENDPOINTS)
    chaos.plan(ENDPOINTS)
    trouble = asyncio.create_task(chaos.reign(PAUSE_S))
    async with asyncio.TaskGroup() as callers:
        for number in range(REQUESTS):
            await asyncio.sleep(rng.expovariate(RATE_RPS))
            payload = b"%b%06d" % (poisoned(rng, 0.001), number)
            patience_s = PATIENCE_S if rng.random() < 0.02 else None
            callers.create_task(world.send(rng.choice(MODELS), payload, patience_s))
    trouble.cancel()
    chaos.heal()
    await asyncio.sleep(5)
    return world, chaos


@pytest.mark.may_block
@pytest.mark.parametrize(("seed", "hedge_after_s"), [(1, None), (2, 0.05)], ids=["plain", "hedged"])
def test_a_request_goes_through_its_stages_once_or_is_refused_with_a_reason(
    seed: int, hedge_after_s: float | None
) -> None:
    world, chaos = run(troubled(seed, Limits(max_queue=200, hedge_after_s=hedge_after_s)))

    books, outcomes = world.books, world.books.outcomes()
    assert len(chaos.happened) == 8, "every kind of trouble came up"
    assert all(len(ends) == 1 for ends in books.ends.values())
    assert not books.wrong
    assert not books.late_sends
    assert outcomes.keys() <= {"answered", "caller went"} | REASONS
    assert outcomes["answered"] > 0.8 * REQUESTS, outcomes
    assert max(books.deaths.values()) <= POISON_DEATHS
    assert not any(world.left_over().values()), world.left_over()
    statistics = [account.stats for account in world.engine.accounts.values()]
    reported_j = sum(stats.total.energy_j + stats.unclaimed_j for stats in statistics)
    assert reported_j == pytest.approx(books.granted_j), "the stages' energy is reported, once"
    assert sum(stats.total.answered for stats in statistics) == outcomes["answered"]
    assert all(stats.since_start().by_variant["deep"] for stats in statistics)


def test_what_was_begun_goes_before_what_came_later() -> None:
    """Under every discipline, requests that are equal to it are served after one that began."""
    for key in DISCIPLINES.values():
        queue = RequestQueue(key)
        begun, later = (PendingRequest(Request(n, "m", b"", 1.0, 9.0)) for n in (1, 2))
        again = begun.enter_stage(begun.start_pipeline().restart(3, 2.0))
        queue.push(later)
        queue.push(again)

        assert [queue.pop(), queue.pop()] == [again, later]
