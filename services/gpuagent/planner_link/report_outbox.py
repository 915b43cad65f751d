"""What the planner is to be sent: of reports only the newest, of results every one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cinquefoil.gpuagent.v1 import steps_pb2
from services.gpuagent.clock_loop.core.governor import ScaleOut


@dataclass(frozen=True, slots=True)
class PendingReports:
    """What to send next.

    Attributes:
        node, energy: Send them again.
        results: Of steps.
        scale_outs: GPUs whose clock can rise no more.
        drifts: Send the profiles that are wrong again.
    """

    node: bool
    energy: bool
    results: tuple[steps_pb2.StepResult, ...]
    scale_outs: tuple[ScaleOut, ...] = ()
    drifts: bool = False


class ReportOutbox:
    """Collects what changed until the stream has room for it, so a slow planner costs nothing."""

    def __init__(self) -> None:
        self._filled = asyncio.Event()
        self._node = False
        self._energy = False
        self._drifts = False
        self._results: list[steps_pb2.StepResult] = []
        self._scale_outs: dict[str, ScaleOut] = {}

    def node_changed(self) -> None:
        """The node has changed since the last report."""
        self._node = True
        self._filled.set()

    def energy_read(self) -> None:
        """The energy accounts are newer."""
        self._energy = True
        self._filled.set()

    def drifted(self) -> None:
        """A profile has become wrong, or right."""
        self._drifts = True
        self._filled.set()

    def put(self, result: steps_pb2.StepResult) -> None:
        """A step was executed."""
        self._results.append(result)
        self._filled.set()

    def scale_out(self, scale_out: ScaleOut) -> None:
        """A GPU's clock can rise no more; of one GPU only the newest word counts."""
        self._scale_outs[scale_out.gpu_uuid] = scale_out
        self._filled.set()

    def reset(self) -> None:
        """Begin a new stream: it starts with the node, and older results mean nothing to it."""
        self._results.clear()
        self._scale_outs.clear()
        self._drifts = True
        self.node_changed()

    async def take(self) -> PendingReports:
        """Wait for something to send, and take all of it."""
        await self._filled.wait()
        self._filled.clear()
        scale_outs = tuple(self._scale_outs.values())
        mail = PendingReports(
            self._node, self._energy, tuple(self._results), scale_outs, self._drifts
        )
        self._node = self._energy = self._drifts = False
        self._results.clear()
        self._scale_outs.clear()
        return mail
