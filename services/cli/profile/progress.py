"""How far a profile is, and how long the rest will take."""

from __future__ import annotations

from rich import progress
from rich.console import Console

from services.cli.profile.render import point, result
from services.cli.profile.request import Target
from services.gpuagent.profiling.profiler.profiler import ProfileProgress


class Progress(progress.Progress):
    """A bar per variant; points that turn out not to matter shorten the bar and the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[point]}"),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=600,
        )
        self._bars: dict[Target, progress.TaskID] = {}

    def show(self, target: Target, step: ProfileProgress) -> None:
        """Show where a variant stands."""
        name = f"{target.model}/{target.variant}"
        if target not in self._bars:
            self._bars[target] = self.add_task(name, completed=step.done, point="")
        if step.last is not None:
            self.console.print(f"{name}  {result(step.last)}", highlight=False, soft_wrap=True)
        self.update(
            self._bars[target],
            completed=step.done,
            total=step.done + step.remaining,
            point=point(step.point) if step.point is not None else "done",
        )
