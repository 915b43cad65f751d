"""The part that all benchmarks share: the command line, the table, the JSON file.

python -m benchmarks.NAME [--json FILE] [--plots [DIR]]
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

J = TypeVar("J", bound=Hashable)
T = TypeVar("T")
P = ParamSpec("P")
Row = Mapping[str, Any]
SMALL = 1e-3
WIDTH = 140
PLOTS = Path("out/bench")


@dataclass(frozen=True, slots=True)
class Figures:
    """One table of a benchmark.

    Attributes:
        title: Subject of the comparison, and its setting.
        rows: Rows with the same keys; keys carry units. Numbers are rounded for the eye only.
        note: Facts that a reader needs to judge the rows.
    """

    title: str
    rows: Sequence[Row]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Findings of a benchmark, where tables alone do not show them.

    Attributes:
        tables: For people.
        document: Output of --json, instead of the tables.
        draw: Writes plots into a folder that exists.
    """

    tables: Sequence[Figures]
    document: Mapping[str, Any] | None = None
    draw: Callable[[Path], None] | None = None


class Skipped(Exception):
    """A benchmark cannot run here; the message says what it lacks."""


Measure = Callable[[], Sequence[Figures] | Report]


def main(name: str, measure: Measure, *, quick: Measure | None = None) -> None:
    """Run a benchmark: print its tables, and write figures and plots where the options say.

    Args:
        name: Name of the benchmark's module.
        measure: Runs it.
        quick: Runs a small part of it, for --quick.
    """
    parser = options(name)
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help="run a small part only")
    arguments = parser.parse_args()
    try:
        found = quick() if quick is not None and arguments.quick else measure()
    except Skipped as reason:
        Console(width=WIDTH).print(f"{name}: skipped, {reason}", highlight=False)
        return
    publish(name, found if isinstance(found, Report) else Report(found), arguments)


def options(name: str) -> argparse.ArgumentParser:
    """Return a command line with the options that every benchmark has."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", nargs="?", const=PLOTS, help="draw plots here"
    )
    return parser


def publish(name: str, report: Report, arguments: argparse.Namespace) -> None:
    """Print the tables, and write figures and plots where the options say."""
    console = Console(width=WIDTH)
    for figures in report.tables:
        console.print(_table(figures))
    if arguments.json:
        figures_by_name = report.document or document(name, report.tables)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures_by_name, indent=2) + "\n")
    if arguments.plots and report.draw:
        arguments.plots.mkdir(parents=True, exist_ok=True)
        report.draw(arguments.plots)


def timed_s(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """Return what a call returns, and how long it took, s."""
    started_s = time.perf_counter()
    found = call(*args, **kwargs)
    return found, time.perf_counter() - started_s


def in_processes(run: Callable[[J], T], jobs: Iterable[J]) -> dict[J, T]:
    """Run jobs in processes, one per core, and show on stderr which have ended.

    Args:
        run: Runs one; a function that a process can import.
        jobs: Arguments of the calls; their names are what `str` makes of them.

    Returns:
        What came of each, in the order of `jobs`.
    """
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ProcessPoolExecutor() as pool,
        Progress(*columns, console=Console(file=sys.stderr)) as progress,
    ):
        futures = {pool.submit(run, job): job for job in jobs}
        task = progress.add_task("running", total=len(futures))
        for done in as_completed(futures):
            progress.advance(task)
            progress.console.print(f"{futures[done]}", highlight=False)
        return {job: future.result() for future, job in futures.items()}


def document(name: str, tables: Sequence[Figures]) -> dict[str, Any]:
    """Return the tables as JSON has them."""
    return {
        "benchmark": name,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "tables": [
            {"title": each.title, "note": each.note, "rows": [dict(row) for row in each.rows]}
            for each in tables
        ],
    }


def _table(figures: Figures) -> Table:
    table = Table(title=figures.title, caption=figures.note or None, title_justify="left")
    for column in figures.rows[0]:
        table.add_column(column.replace("_", " "), justify="right", min_width=5)
    for row in figures.rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < SMALL else f"{value:.4g}"
    return str(value)
