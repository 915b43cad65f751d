"""The books of a router whose workers, agents and planner are killed at random: none is missing.

Every one of 40,000 requests is looked at, over the seeds together.
"""

import asyncio
from random import Random

import pytest

from services.router.core.model import POISON_DEATHS, Limits
from tests.support.router.chaos import ENDPOINTS, MODELS, PATIENCE_S, POISON, Chaos, World
from tests.support.virtual_loop import run

REQUESTS, RATE_RPS, PAUSE_S = 10_000, 800.0, 0.1
POISONED, IMPATIENT = 0.0005, 0.01
REASONS = {
    "DEADLINE",  # its time was up
    "OVERLOADED",  # its time would be up
    "QUEUE_FULL",
    "MODEL_NOT_FOUND",  # no plan had its model when it came
    "MODEL_REMOVED",  # nor later
    "NO_WORKER_ANSWERED",
    "RETRIES_SPENT",
    "WORKERS_DIED",
}


async def load(world: World, rng: Random) -> None:
    """Send every request, and return when each has ended."""
    async with asyncio.TaskGroup() as callers:
        for number in range(REQUESTS):
            await asyncio.sleep(rng.expovariate(RATE_RPS))
            poisoned = POISON if rng.random() < POISONED else b""
            body = b"%b%06d" % (poisoned, number)
            patience_s = PATIENCE_S if rng.random() < IMPATIENT else None
            callers.create_task(world.send(rng.choice(MODELS), body, patience_s))


async def troubled(seed: int, limits: Limits) -> tuple[World, Chaos]:
    """Send the load through trouble, then let what is behind the router end its work."""
    rng = Random(seed)
    world = World(limits)
    chaos = Chaos(world, rng)
    chaos.plan(ENDPOINTS)
    trouble = asyncio.create_task(chaos.reign(PAUSE_S))
    await load(world, rng)
    trouble.cancel()
    chaos.heal()
    await asyncio.sleep(5)
    return world, chaos


@pytest.mark.may_block
@pytest.mark.parametrize("hedge_after_s", [None, 0.03], ids=["plain", "hedged"])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_request_is_answered_once_or_refused_with_a_reason(
    seed: int, hedge_after_s: float | None
) -> None:
    limits = Limits(max_queue=200, hedge_after_s=hedge_after_s)

    world, chaos = run(troubled(seed, limits))

    books, outcomes = world.books, world.books.outcomes()
    assert len(chaos.happened) == 8, "every kind of trouble came up"
    assert len(books.ends) == REQUESTS
    assert all(len(ends) == 1 for ends in books.ends.values())
    assert not books.wrong
    assert not books.late_sends
    assert outcomes.keys() <= {"answered", "caller went"} | REASONS
    assert outcomes["answered"] > 0.8 * REQUESTS, outcomes
    assert max(books.deaths.values()) <= POISON_DEATHS
    assert not any(books.ends[body] == ["answered"] for body in books.deaths)
    assert hedge_after_s or max(books.answers.values()) == 1, "no work is done twice"
    assert not any(world.left_over().values()), world.left_over()
    statistics = [account.stats for account in world.engine.accounts.values()]
    reported_j = sum(stats.total.energy_j + stats.unclaimed_j for stats in statistics)
    assert reported_j == pytest.approx(books.granted_j)
    found = outcomes["MODEL_NOT_FOUND"]
    assert sum(stats.arrivals for stats in statistics) == REQUESTS - found
    assert sum(stats.total.answered for stats in statistics) == outcomes["answered"]
    errors = sum(sum(stats.statuses.values()) for stats in statistics)
    assert errors == REQUESTS - found - outcomes["answered"]
    gone = sum(stats.statuses.get("CANCELLED", 0) for stats in statistics)
    assert sum(stats.fail.count for stats in statistics) <= errors - gone
