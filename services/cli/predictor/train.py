"""Trains or evaluates a predictor; prints a table, writes the report and its plot."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from services.cli.console.output import table
from services.cli.predictor import chart
from services.kit.errors import InvalidArgument
from services.predictor.adapters.proxy_model import DEFAULT, ProxyModel
from services.predictor.embedding.minilm import MiniLm
from services.predictor.training.baselines import baselines
from services.predictor.training.core.fit import STEPS, edges_tokens, fit
from services.predictor.training.core.rows import read, split
from services.predictor.training.export import to_onnx
from services.predictor.training.report import Report, judge


def train(data: Path, out: Path, *, test_share: float, seed: int, as_json: bool) -> None:
    """Train on most prompts of a file, judge on the others.

    Raises:
        InvalidArgument: The file cannot be used, or has too few prompts.
    """
    training, testing = split(read(data), test_share, seed)
    known = {row.model for row in training}
    testing = [row for row in testing if row.model in known]
    if not testing:
        raise InvalidArgument(f"{data}: too few prompts to keep some for testing", field="data")
    out.mkdir(parents=True, exist_ok=True)  # now: training takes its time
    with _progress(as_json) as bar:
        task = bar.add_task("", total=STEPS + 2)

        def step(what: str) -> None:
            bar.update(task, description=what, advance=1)

        embed = MiniLm().embed
        trained = fit(training, embed, seed=seed, progress=step)
        step("training simple predictors")
        beside = baselines(training, testing, trained.body.edges_tokens)
        step("judging")
        file = out / "predictor.onnx"
        file.write_bytes(to_onnx(trained))
        report = judge(ProxyModel(file), embed, testing, trained.body.edges_tokens, beside)
        bar.update(task, completed=STEPS + 2, description="done")
    title = f"On the prompts of {data.name} that were kept apart"
    _show(report, title, out, "predictor.onnx, ", as_json=as_json)


def evaluate(data: Path, model: Path | None, out: Path, *, as_json: bool) -> None:
    """Judge a predictor on all prompts of a file.

    Raises:
        InvalidArgument: The file of answers cannot be used.
        FailedPrecondition: The predictor cannot.
    """
    rows = read(data)
    report = judge(ProxyModel(model or DEFAULT), MiniLm().embed, rows, edges_tokens(rows))
    out.mkdir(parents=True, exist_ok=True)
    _show(report, f"On {data.name}", out, "", as_json=as_json)


def _show(report: Report, title: str, out: Path, written: str, *, as_json: bool) -> None:
    document = json.dumps(report.document(), indent=2, allow_nan=False) + "\n"
    (out / "report.json").write_text(document, encoding="utf-8")
    chart.draw(report.confusion, out / "confusion.png")
    if as_json:
        sys.stdout.write(document)
        return
    console = Console()
    console.print(evaluation_table(report, title))
    console.print(Text(f"\n{out}: {written}report.json, confusion.png"))


def evaluation_table(report: Report, title: str) -> Table:
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


def _progress(as_json: bool) -> Progress:
    console = Console(stderr=as_json)
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
    )
