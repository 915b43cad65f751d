"""The same Poisson stream for several suites, at a load that stays when the machine's pace changes.

What else the machine does changes what an answer takes. So the rate follows: gaps are drawn as
parts of the time that an answer keeps its slot, as recently reported by the routers.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from benchmarks.generative.live_suite import Answer, LiveSuite, Question

_LOOK_S: Final = 5.0
_WEIGHT: Final = 0.25  # of the newest look: a mean of about 20 s


class Pace:
    """Present time that an answer keeps its slot, and the gap between requests that follows.

    Args:
        suites: All suites.
        load: Work that comes in over what can be done, 0..1.

    Attributes:
        service_s: Time that an answer keeps its slot, mean over the suites, s.
    """

    def __init__(self, suites: Sequence[LiveSuite], load: float) -> None:
        self.service_s = 0.0
        self._load = load
        self._suites = suites
        self._seen = (0, 0.0)

    @property
    def gap_s(self) -> float:
        """Mean time from a request to the next one, s."""
        return self.service_s / self._load

    async def look(self, weight: float = 1.0) -> None:
        """Take in what was answered since the last look."""
        counted = [await one.computed() for one in self._suites]
        count, total_s = sum(each[0] for each in counted), sum(each[1] for each in counted)
        answered = count - self._seen[0]
        if answered:
            newest_s = (total_s - self._seen[1]) / answered
            self.service_s += weight * (newest_s - self.service_s)
        self._seen = (count, total_s)

    async def follow(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look(_WEIGHT)


async def saturated(one: LiveSuite, questions: Iterable[Question]) -> None:
    """Send requests so that one always waits behind the one being answered.

    Raises:
        RuntimeError: One was not answered.
    """
    left = iter(questions)

    async def send_all() -> None:
        for question in left:
            if await one.send(question, time.monotonic()) is None:
                raise RuntimeError(f"{one.name}: {one.lost[-1]}")

    await asyncio.gather(send_all(), send_all())


async def stream(
    suites: Sequence[LiveSuite],
    questions: Iterator[Question],
    pace: Pace,
    rng: np.random.Generator,
    seconds: float,
) -> list[list[Answer | None]]:
    """Send every suite the same requests at the same times, and wait for all answers.

    Args:
        suites: All suites.
        questions: More than will be sent.
        pace: Rate of the requests.
        rng: Draws the gaps between them.
        seconds: Length of the stream, s.

    Returns:
        The answers of each suite, in order of the questions; None: an error.
    """
    due_s = time.monotonic()
    end_s = due_s + seconds
    sent: list[list[asyncio.Task[Answer | None]]] = [[] for _ in suites]
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(pace.follow(), name="pace")
        for question in questions:
            due_s += rng.exponential(pace.gap_s)
            if due_s > end_s:
                break
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            for each, one in zip(sent, suites, strict=True):
                each.append(tasks.create_task(one.send(question, due_s), name=one.name))
        following.cancel()
    return [[task.result() for task in each] for each in sent]
