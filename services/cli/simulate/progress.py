"""How far a simulation is, and how fast it goes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

from services.simulator.scenario import Policy


class Progress:
    """A bar per policy; a context manager around the simulation.

    Attributes:
        speeds: Seconds of virtual time per second, by policy that has ended.
    """

    def __init__(self, console: Console, policies: Sequence[Policy], duration_s: float) -> None:
        self._duration_s = duration_s
        self._began_s: dict[str, float] = {}
        self._speeds: dict[str, float] = {}
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[speed]}"),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {
            policy.label: self._bars.add_task(policy.label, total=1.0, speed="")
            for policy in policies
        }

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    @property
    def speeds(self) -> Mapping[str, float]:
        """Seconds of virtual time per second, by policy."""
        return self._speeds

    def show(self, policy: Policy, part: float) -> None:
        """Show that a part (0..1) of a policy's time has passed."""
        name, now_s = policy.label, time.monotonic()
        elapsed_s = now_s - self._began_s.setdefault(name, now_s)
        if elapsed_s > 0:
            self._speeds[name] = part * self._duration_s / elapsed_s
        speed = f"{self._speeds.get(name, 0):,.0f} x real time"
        self._bars.update(self._tasks[name], completed=part, speed=speed)
