"""The day on a terminal, or as plain lines where there is none."""

from collections import defaultdict
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.cli.demo.sample import Grid, Sample, SuiteRun
from services.kit.clock import Clock

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
        table = Table("", "plan", "variants x slices", box=None, pad_edge=False)
        for name in ("power", "p95", "answered", "lost"):
            table.add_column(name, justify="right")
        for name, run in self._runs.items():
            last, stats = run.samples[-1], run.stats
            table.add_row(
                _TITLES[name],
                str(last.plan),
                layout(last),
                f"{last.power_w:.0f} W",
                f"{stats.quantile_s(95) * 1e3:.0f} ms",
                str(stats.answered),
                str(stats.lost),
            )
        return Group(Text(self._grid_now(), style="bold"), bar, table)

    def _line(self) -> str:
        parts = [self._grid_now()]
        for name, run in self._runs.items():
            last, stats = run.samples[-1], run.stats
            parts.append(
                f"{_TITLES[name]}: plan {last.plan}, {layout(last)}, {last.power_w:.0f} W, "
                f"p95 {stats.quantile_s(95) * 1e3:.0f} ms, {stats.answered} answered, "
                f"{stats.lost} lost"
            )
        return " | ".join(parts)

    def _grid_now(self) -> str:
        at = self._grid.now(self._clock.monotonic())
        return (
            f"{at:%a %H:%M} UTC  {self._grid.zone} "
            f"{self._grid.intensity_gco2e_per_kwh:.0f} gCO2e/kWh"
        )


def layout(reading: Sample) -> str:
    """Return what a plan runs in words, for example "svc 45 % (2x 3g.20gb)"."""
    slices: dict[str, list[str]] = defaultdict(list)
    for (variant, profile), count in sorted(reading.slices.items()):
        slices[variant].append(f"{count}x {profile}")
    return ", ".join(
        f"{variant} {reading.shares.get(variant, 0.0):.0%} ({' + '.join(kinds)})".replace("%", " %")
        for variant, kinds in slices.items()
    )
