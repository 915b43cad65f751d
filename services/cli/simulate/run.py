"""Reads a scenario, simulates it, and writes what came of it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from services.cli.simulate import chart, page
from services.cli.simulate.progress import Progress
from services.cli.simulate.render import render
from services.simulator.loader import Setting, read
from services.simulator.report.report import chosen, run


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None: as the scenario says."""

    out: Path
    policies: tuple[str, ...]
    detail: str | None
    seed: int | None
    as_json: bool


def simulate(path: Path, options: Options) -> None:
    """Simulate a scenario; print a table or JSON, write both with plots and a page.

    Raises:
        ConfigError: The scenario, or what it refers to, cannot be used.
        InvalidArgument: There is no such policy.
    """
    setting = _changed(read(path), options)
    policies = chosen(setting, options.policies)
    options.out.mkdir(parents=True, exist_ok=True)  # now: a simulation takes its time
    console = Console(stderr=options.as_json)
    with Progress(console, policies, setting.scenario.duration_s) as progress:
        report = run(path.stem, setting, policies, progress.show)
    document = json.dumps(report.document(), indent=2, allow_nan=False) + "\n"
    (options.out / "report.json").write_text(document, encoding="utf-8")
    plots = chart.draw(report, options.out)
    page.write(report, plots, options.out / "report.html")
    if options.as_json:
        sys.stdout.write(document)
        return
    console.print(render(report, progress.speeds))
    console.print(Text(f"{options.out}/report.html, report.json, timeline.png, plans.png"))


def _changed(setting: Setting, options: Options) -> Setting:
    given: dict[str, Any] = {"detail": options.detail, "seed": options.seed}
    update = {key: value for key, value in given.items() if value is not None}
    return replace(setting, scenario=setting.scenario.model_copy(update=update))
