"""How far a profile is, and how long the rest will take."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

from services.cli.profile.render import point, result
from services.cli.profile.request import Target
from services.gpuagent.profiling.profiler.profiler import ProfileProgress


class Progress:
    """A bar per variant; a context manager around the measurements.

    Points that turn out not to matter shorten the bar, and with it the time left.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[point]}"),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=600,
        )
        self._tasks: dict[Target, progress.TaskID] = {}

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

    def show(self, target: Target, step: ProfileProgress) -> None:
        """Show where a variant stands."""
        name = f"{target.model}/{target.variant}"
        if target not in self._tasks:
            self._tasks[target] = self._bars.add_task(name, completed=step.done, point="")
        if step.last is not None:
            self._console.print(f"{name}  {result(step.last)}", highlight=False, soft_wrap=True)
        self._bars.update(
            self._tasks[target],
            completed=step.done,
            total=step.done + step.remaining,
            point=point(step.point) if step.point is not None else "done",
        )
