"""How good predictors are, for a terminal."""

from __future__ import annotations

from rich.table import Table

from services.cli.console.tables import table
from services.predictor.training.report import Report


def judged(report: Report, title: str) -> Table:
    """Return a report as a table: predictors side by side, served model by served model."""
    columns = ("model", "predictor", ">accuracy", ">F1", ">L1", ">MSE", ">pair order")
    made = table(title, *columns)
    for model, found in report.measures.items():
        label = f"{model} ({report.rows[model]})"
        for name, each in found.items():
            figures = (each.accuracy, each.f1, each.l1, each.mse, each.pair_order)
            made.add_row(label, name, *(f"{figure:.2f}" for figure in figures))
            label = ""
        made.add_section()
    return made
