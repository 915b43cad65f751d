"""How far a simulation is, and how fast it goes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich import progress
from rich.console import Console

from services.simulator.scenario import Policy


class Progress(progress.Progress):
    """A bar per policy.

    Attributes:
        speeds: Seconds of virtual time per second, by policy.
    """

    def __init__(self, console: Console, policies: Sequence[Policy], duration_s: float) -> None:
        super().__init__(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[speed]}"),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.speeds: dict[str, float] = {}
        self._duration_s = duration_s
        self._began_s: dict[str, float] = {}
        self._bars = {
            policy.label: self.add_task(policy.label, total=1.0, speed="") for policy in policies
        }

    def show(self, policy: Policy, part: float) -> None:
        """Show that a part (0..1) of a policy's time has passed."""
        name, now_s = policy.label, time.monotonic()
        elapsed_s = now_s - self._began_s.setdefault(name, now_s)
        if elapsed_s > 0:
            self.speeds[name] = part * self._duration_s / elapsed_s
        speed = f"{self.speeds.get(name, 0):,.0f} x real time"
        self.update(self._bars[name], completed=part, speed=speed)
