"""The day on a terminal, or as plain lines where there is none."""

from collections.abc import Mapping
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.cli.console.slice_bars import bar, labels
from services.cli.demo.sample import Grid, Sample, SuiteRun
from services.kit.clock import Clock
from services.local.demo.load import RequestStats

_LINE_EVERY_S = 5.0
_TITLES = {"base": "BASE", "cinquefoil": "Cinquefoil"}


class Progress(Live):
    """Shows a day as it passes, as a live table or as a line every few seconds."""

    def __init__(
        self,
        console: Console,
        runs: Mapping[str, SuiteRun],
        grid: Grid,
        clock: Clock,
        duration_s: float,
    ) -> None:
        super().__init__(console=console, auto_refresh=False)
        self._runs, self._grid, self._clock = runs, grid, clock
        self._duration_s = duration_s
        self._next_line_s = 0.0

    def show(self, seconds: float) -> None:
        """Show the state at `seconds` after the load's start."""
        if self.console.is_terminal:
            self.update(self._picture(seconds), refresh=True)
        elif seconds >= self._next_line_s:
            self._next_line_s += _LINE_EVERY_S
            self.console.print(Text(self._line()), soft_wrap=True)

    def _picture(self, seconds: float) -> RenderableType:
        bar = ProgressBar(total=self._duration_s, completed=min(seconds, self._duration_s))
        rows = Table("", "plan", "slices of each GPU", box=None, pad_edge=False)
        for name in ("power", "answered", "lost"):
            rows.add_column(name, justify="right")
        known = self._labels()
        for name, run in self._runs.items():
            last, stats = run.samples[-1], RequestStats.total(run.stats.values())
            bars = Text("\n").join(bars_of(last, known))
            counts = (f"{last.power_w:.0f} W", str(stats.answered), str(stats.lost))
            rows.add_row(_TITLES[name], str(last.plan), bars, *counts)
        key = "  ".join(f"{label} {name}" for name, label in known.items())
        return Group(Text(self._grid_now(), style="bold"), bar, rows, Text(key, style="dim"))

    def _line(self) -> str:
        """Return the state in 80 columns, for a log."""
        last = {name: run.samples[-1] for name, run in self._runs.items()}
        stats = [RequestStats.total(run.stats.values()) for run in self._runs.values()]
        powers = ", ".join(f"{_TITLES[name]} {one.power_w:.0f} W" for name, one in last.items())
        answered = ", ".join(f"{one.answered}" for one in stats)
        plan = last["cinquefoil"].plan if "cinquefoil" in last else 0
        return (
            f"{self._at():%H:%M} {self._grid.intensity_gco2e_per_kwh:3.0f} g/kWh | {powers} | "
            f"plan {plan} | {answered} answered, {sum(one.lost for one in stats)} lost"
        )

    def _labels(self) -> dict[str, str]:
        return labels(
            piece.runs
            for run in self._runs.values()
            for gpu in run.samples[-1].gpus
            for piece in gpu.slices
        )

    def _at(self) -> datetime:
        return self._grid.now(self._clock.monotonic())

    def _grid_now(self) -> str:
        return (
            f"{self._at():%a %H:%M} UTC  {self._grid.zone} "
            f"{self._grid.intensity_gco2e_per_kwh:.0f} gCO2e/kWh"
        )


def bars_of(reading: Sample, known: Mapping[str, str]) -> list[Text]:
    """Return a bar for each GPU; `known` is its labels by what runs."""
    return [bar(gpu.cells, gpu.slices, known) for gpu in reading.gpus]
