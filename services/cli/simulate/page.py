"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import timedelta
from importlib import resources
from pathlib import Path

from jinja2 import Environment

from services.cli.simulate.render import rows
from services.simulator.report.report import Report

_TEMPLATE = "report.html.j2"


def write(report: Report, plots: Mapping[str, Path], path: Path) -> None:
    """Write the page.

    Args:
        report: What came of a scenario.
        plots: PNG files by title; they are embedded.
        path: The page.
    """
    source = (resources.files("services.cli.simulate") / _TEMPLATE).read_text(encoding="utf-8")
    template = Environment(autoescape=True).from_string(source)
    text = template.render(
        report=report,
        length=timedelta(seconds=report.duration_s),
        rows=list(rows(report)),
        plots={title: b64encode(plot.read_bytes()).decode() for title, plot in plots.items()},
    )
    path.write_text(text, encoding="utf-8")
