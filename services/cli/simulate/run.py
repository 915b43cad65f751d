"""Reads a scenario, simulates it, and writes what came of it."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib import resources
from pathlib import Path

from jinja2 import Environment
from rich.console import Console
from rich.text import Text

from services.cli.simulate import chart
from services.cli.simulate.progress import Progress
from services.cli.simulate.render import render, rows
from services.simulator.loader import read
from services.simulator.report.report import Report, chosen, run


def simulate(
    path: Path, out: Path, policies: Sequence[str], *, as_json: bool, **changes: object
) -> None:
    """Simulate a scenario; print a table or JSON, write both with plots and a page.

    Args:
        path: The scenario.
        out: Folder.
        policies: Of the scenario, or strategies; empty: all of the scenario's.
        as_json: Print JSON instead of the table.
        changes: Values of the scenario to replace; None: as the scenario says.

    Raises:
        ConfigError: The scenario, or what it refers to, cannot be used.
        InvalidArgument: There is no such policy.
    """
    setting = read(path)
    given = {key: value for key, value in changes.items() if value is not None}
    setting = replace(setting, scenario=setting.scenario.model_copy(update=given))
    wanted = chosen(setting, tuple(policies))
    out.mkdir(parents=True, exist_ok=True)  # now: a simulation takes its time
    console = Console(stderr=as_json)
    with Progress(console, wanted, setting.scenario.duration_s) as progress:
        report = run(path.stem, setting, wanted, progress.show)
    document = json.dumps(report.document(), indent=2, allow_nan=False) + "\n"
    (out / "report.json").write_text(document, encoding="utf-8")
    plots = chart.draw(report, out)
    _write_page(report, plots, out / "report.html")
    if as_json:
        sys.stdout.write(document)
        return
    console.print(render(report, progress.speeds))
    console.print(Text(f"{out}/report.html, report.json, timeline.png, plans.png"))


def _write_page(report: Report, plots: Mapping[str, Path], path: Path) -> None:
    """Write the report as one HTML file that needs nothing else: plots are embedded."""
    source = (resources.files("services.cli.simulate") / "report.html.j2").read_text(
        encoding="utf-8"
    )
    template = Environment(autoescape=True).from_string(source)
    text = template.render(
        report=report,
        length=timedelta(seconds=report.duration_s),
        rows=list(rows(report)),
        plots={title: b64encode(plot.read_bytes()).decode() for title, plot in plots.items()},
    )
    path.write_text(text, encoding="utf-8")
