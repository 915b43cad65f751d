"""Reads a scenario, simulates it, and writes its report."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich import progress
from rich.console import Console
from rich.text import Text

from services.cli.simulate.page import write
from services.cli.simulate.render import render
from services.kit import cgroup
from services.simulator.loader import Setting, read
from services.simulator.report.report import chosen, run_in_processes
from services.simulator.scenario import Policy


def simulate(
    path: Path,
    out: Path,
    policies: Sequence[str],
    *,
    processes: int | None,
    as_json: bool,
    **changes: object,
) -> None:
    """Simulate a scenario; print a table or JSON, write both, and a page to explore.

    Args:
        path: The scenario.
        out: Folder.
        policies: Of the scenario, or strategies; empty: all of the scenario's.
        processes: Policies that are simulated at a time; None: one on each CPU.
        as_json: Print JSON instead of the table.
        changes: Values of the scenario to replace; None: as the scenario says.

    Raises:
        ConfigError: The scenario, or what it refers to, cannot be used.
        InvalidArgument: There is no such policy.
    """
    given = {key: value for key, value in changes.items() if value is not None}
    reader = partial(_read, path, given)
    setting = reader()
    wanted = chosen(setting, tuple(policies))
    out.mkdir(parents=True, exist_ok=True)  # now: a simulation takes its time
    console = Console(stderr=as_json)
    with Progress(console, wanted, setting.scenario.duration_s) as bars:
        at_once = processes or cgroup.whole_cores()
        report = run_in_processes(path.stem, reader, wanted, bars.show, at_once)
    document = json.dumps(report.document(), indent=2, allow_nan=False) + "\n"
    (out / "report.json").write_text(document, encoding="utf-8")
    write(report, out / "report.html")
    if as_json:
        sys.stdout.write(document)
        return
    console.print(render(report, bars.speeds))
    console.print(Text(f"{out}/report.html, report.json"))


def _read(path: Path, changes: Mapping[str, object]) -> Setting:
    setting = read(path)
    return replace(setting, scenario=setting.scenario.model_copy(update=changes))


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
