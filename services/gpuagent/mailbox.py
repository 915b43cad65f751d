"""What is to be told to the planner: of reports only the newest, of results every one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cinquefoil.gpuagent.v1 import steps_pb2


@dataclass(frozen=True, slots=True)
class Mail:
    """What to tell next. Attributes: node and energy (tell them anew), results (of steps)."""

    node: bool
    energy: bool
    results: tuple[steps_pb2.StepResult, ...]


class Mailbox:
    """Collects what changed until the stream has room for it, so a slow planner costs nothing."""

    def __init__(self) -> None:
        self._filled = asyncio.Event()
        self._node = False
        self._energy = False
        self._results: list[steps_pb2.StepResult] = []

    def node_changed(self) -> None:
        """The node is not as it was told."""
        self._node = True
        self._filled.set()

    def energy_read(self) -> None:
        """The energy accounts are newer."""
        self._energy = True
        self._filled.set()

    def put(self, result: steps_pb2.StepResult) -> None:
        """A step was executed."""
        self._results.append(result)
        self._filled.set()

    def reset(self) -> None:
        """Begin a new stream: it starts with the node, and older results mean nothing to it."""
        self._results.clear()
        self.node_changed()

    async def take(self) -> Mail:
        """Wait for something to tell, and take all of it."""
        await self._filled.wait()
        self._filled.clear()
        mail = Mail(self._node, self._energy, tuple(self._results))
        self._node = self._energy = False
        self._results.clear()
        return mail
