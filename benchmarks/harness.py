"""What every benchmark shares: the command line, the table, the JSON file.

python -m benchmarks.NAME [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rich.console import Console
from rich.table import Table

T = TypeVar("T")
P = ParamSpec("P")
Row = Mapping[str, Any]
SMALL = 1e-3
WIDTH = 140


@dataclass(frozen=True, slots=True)
class Figures:
    """One table of a benchmark.

    Attributes:
        title: What was compared, on what.
        rows: All with the same keys; keys carry units. Numbers are rounded for the eye only.
        note: What a reader must know to judge them.
    """

    title: str
    rows: Sequence[Row]
    note: str = ""


def main(name: str, measure: Callable[[], Sequence[Figures]]) -> None:
    """Run a benchmark: print its tables, and write its figures where --json says."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    arguments = parser.parse_args()
    tables = measure()
    console = Console(width=WIDTH)
    for figures in tables:
        console.print(_table(figures))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(_document(name, tables), indent=2) + "\n")


def timed_s(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """Return what a call returns, and how long it took, s."""
    started_s = time.perf_counter()
    found = call(*args, **kwargs)
    return found, time.perf_counter() - started_s


def _document(name: str, tables: Sequence[Figures]) -> dict[str, Any]:
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
