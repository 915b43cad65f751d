"""Shows the predictor's statistics, and deletes its prompts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer
from rich.console import Group, RenderableType

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1 import predictor_pb2_grpc as pb_grpc
from services.cli.client import Clients, query
from services.cli.console.messages import Cell, Messages
from services.cli.console.output import show
from services.cli.console.quantities import percent, seconds
from services.kit.errors import NotFound
from services.kit.plurals import counted


async def status(config: Path, *, as_json: bool) -> None:
    """Print the statistics of predictions.

    Raises:
        ServiceError: The deployment has no predictor, or it does not answer.
    """
    request = pb.GetStatisticsRequest()
    found = await query(config, lambda clients: _predictor(clients).GetStatistics(request))
    show(list(found.models), lambda: render(found.models), as_json=as_json)


async def forget(config: Path, request: pb.ForgetRequest) -> None:
    """Delete the predictor's prompts, and print how many.

    Raises:
        ServiceError: The deployment has no predictor, or it does not answer.
    """
    answer = await query(config, lambda clients: _predictor(clients).Forget(request))
    typer.echo(f"forgotten: {counted(answer.forgotten, 'prompt')}")


def _predictor(clients: Clients) -> pb_grpc.PredictorServiceAsyncStub:
    if clients.predictor is None:
        raise NotFound(
            "the deployment has no predictor: `predictor: {}` in its file adds one, and "
            "`cinquefoil predictor serve`, or `cinquefoil up`, starts it"
        )
    return clients.predictor


def render(models: Iterable[pb.ModelStatistics]) -> RenderableType:
    """Return each model's values, and a row per source; cache hits are "exact" or "semantic"."""
    view = Messages()
    columns: dict[str, Cell] = {
        "source": "source",
        ">predictions": "predictions",
        ">mean": lambda each: seconds(each.total_s / max(each.predictions, 1)),
        ">class right": lambda each: percent(each.right / each.judged) if each.judged else "-",
    }
    parts: list[RenderableType] = []
    for model in models:
        known = view.details(model, f"Lengths of {model.model}", hide=("model", "sources"))
        parts += (
            [known, view.table("By source", model.sources, columns)] if model.sources else [known]
        )
        if not (model.sources or model.observed):
            parts.append(f"Nothing was predicted for {model.model}.")
    return Group(*parts)
