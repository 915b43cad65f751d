"""Shows the predictor's statistics, and has it forget prompts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer
from rich.console import RenderableType

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1 import predictor_pb2_grpc as pb_grpc
from services.cli.client import Clients, query
from services.cli.console.messages import word
from services.cli.console.output import show, table
from services.cli.console.quantities import percent
from services.kit.errors import NotFound
from services.kit.plurals import counted


async def status(config: Path, *, as_json: bool) -> None:
    """Print what was predicted, and how well.

    Raises:
        ServiceError: The deployment has no predictor, or it does not answer.
    """
    request = pb.GetStatisticsRequest()
    found = await query(config, lambda clients: _predictor(clients).GetStatistics(request))
    show(list(found.models), lambda: render(found.models), as_json=as_json)


async def forget(config: Path, request: pb.ForgetRequest) -> None:
    """Make the predictor forget prompts, and print how many.

    Raises:
        ServiceError: The deployment has no predictor, or it does not answer.
    """
    answer = await query(config, lambda clients: _predictor(clients).Forget(request))
    typer.echo(f"forgotten: {counted(answer.forgotten, 'prompt')}")


def _predictor(clients: Clients) -> pb_grpc.PredictorServiceAsyncStub:
    if clients.predictor is None:
        raise NotFound("the deployment has no predictor; `predictor: {}` in its file adds one")
    return clients.predictor


def render(models: Iterable[pb.ModelStatistics]) -> RenderableType:
    """Return one row per model and source; a cache hit is "exact" or "semantic"."""
    rows = table(
        "Length predictions",
        *("model", ">known", ">observed", "source", ">predictions", ">mean ms", ">class right"),
    )
    for model in models:
        head = (model.model, str(model.cache_entries), str(model.observed))
        for each in model.sources:
            mean_ms = each.total_s / each.predictions * 1e3 if each.predictions else 0.0
            right = percent(each.right / each.judged) if each.judged else "-"
            source = word(pb.Source.DESCRIPTOR, each.source)
            rows.add_row(*head, source, str(each.predictions), f"{mean_ms:.2f}", right)
            head = ("", "", "")
        if not model.sources:
            rows.add_row(*head, "-", "0", "-", "-")
    return rows
