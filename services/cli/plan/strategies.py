"""What the strategies do, in their own words."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from rich.console import Console

from services.cli.console.proto_json import print_json
from services.cli.console.tables import table
from services.planner.core.strategies import REGISTRY


def show_strategies(*, as_json: bool) -> None:
    """Print the first line of each strategy's docstring."""
    said = {name: _summary(strategy) for name, strategy in sorted(REGISTRY.items())}
    if as_json:
        print_json([{"name": name, "summary": summary} for name, summary in said.items()])
        return
    rows = table("", "strategy", "what it does")
    for name, summary in said.items():
        rows.add_row(name, summary)
    Console().print(rows)


def _summary(strategy: Any) -> str:
    made = strategy.func if isinstance(strategy, partial) else strategy
    return (inspect.getdoc(made) or "").partition("\n")[0]
