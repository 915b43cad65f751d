"""Some agents of a fleet in a process of their own: one process cannot keep a thousand.

It reads orders from its standard input, a line each, and answers those that need an answer. The
clock is the machine's monotonic one, which all processes share. It gives way to the planner, which
has a machine of its own in a cluster.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Final

from benchmarks._agent import beside
from benchmarks.fleet.peers import Agent
from services.kit.telemetry import logs

_MOST: Final = 500
"""Agents in a process."""


class Crowd:
    """Agents in another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def started(
        cls, agents: range, gpus: int, planner: Sequence[str]
    ) -> AsyncIterator[Crowd]:
        """Keep a process while the block runs; its agents have not joined yet.

        Args:
            agents: Their indices in the fleet.
            gpus: Of each.
            planner: Addresses of the planners.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "benchmarks.fleet.crowd"),
            *map(str, (agents.start, agents.stop, gpus, *planner)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            crowd = cls(process)
            await crowd._answer()
            yield crowd
        finally:
            process.kill()
            await process.wait()

    def join(self) -> None:
        """Send all of them the order to join."""
        self._say("join")

    def meter(self) -> None:
        """Start reports of energy once a second by all of them."""
        self._say("meter")

    async def chosen(self) -> str:
        """Return where the worker that moves next will listen; "": none of them serves."""
        self._say("choose")
        return await self._answer()

    async def move(self) -> float:
        """Move the chosen worker; return the time, monotonic, s."""
        self._say("move")
        return float(await self._answer())

    def _say(self, order: str) -> None:
        assert self._process.stdin is not None  # a pipe
        self._process.stdin.write(f"{order}\n".encode())

    async def _answer(self) -> str:
        assert self._process.stdout is not None  # a pipe
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of agents has ended")
        return line.decode().strip()


@asynccontextmanager
async def crowds(count: int, gpus: int, planner: Sequence[str]) -> AsyncIterator[list[Crowd]]:
    """Keep `count` agents in processes while the block runs; arguments as of `Crowd.started`."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Crowd.started(range(first, min(first + _MOST, count)), gpus, planner)
            )
            for first in range(0, count, _MOST)
        ]


async def _serve(agents: Sequence[Agent], planner: Sequence[str]) -> None:
    """Do what the standard input says, until it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    draw, chosen = Random(agents[0].index), agents[0]

    def choose() -> str:
        nonlocal chosen
        serving = [each for each in agents if each.serves]
        if not serving:
            return ""
        chosen = draw.choice(serving)
        return chosen.next_endpoint()

    def move() -> str:
        moved_s = time.monotonic()
        chosen.move()
        return str(moved_s)

    answers: dict[str, Callable[[], str]] = {"choose": choose, "move": move}
    async with AsyncExitStack() as stack:
        _say("ready")
        while order := (await reader.readline()).decode().strip():
            if order == "join":
                await stack.enter_async_context(beside(each.run(planner) for each in agents))
            elif order == "meter":
                for agent in agents:
                    agent.meters.set()
            else:
                _say(answers[order]())


def _say(answer: str) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logs.configure("fleet", level="error")
    os.nice(19)
    start, stop, number = map(int, sys.argv[1:4])
    asyncio.run(
        _serve(
            [Agent(f"node-{index}", index, number) for index in range(start, stop)], sys.argv[4:]
        )
    )
