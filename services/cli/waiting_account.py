"""The account of requests that waited: by owner, beside what they would have emitted otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import typer
from rich.console import RenderableType

from cinquefoil.batch.v1 import batch_pb2 as pb
from services.cli.client import Clients
from services.cli.console.messages import Messages
from services.cli.console.quantities import carbon, energy, percent
from services.kit.errors import Unavailable


async def fetch(clients: Clients, window: tuple[datetime, datetime]) -> list[pb.WaitingAccount]:
    """Return what batches took that began within a window; none without a batch service."""
    if clients.batch is None:
        return []
    request = pb.ReadAccountRequest()
    request.since.FromDatetime(window[0])
    request.until.FromDatetime(window[1])
    try:
        return list((await clients.batch.ReadAccount(request)).entries)
    except Unavailable as error:
        typer.echo(f"Batches are missing: {error.message}", err=True)
        return []


def render(entries: Sequence[pb.WaitingAccount]) -> RenderableType:
    """Return one row per owner and model."""
    return Messages().table(
        "Requests that waited, of batches begun in this time",
        entries,
        {
            "owner": "owner",
            "model": "model",
            ">requests": lambda each: str(each.completed),
            ">energy": lambda each: energy(each.energy_j),
            ">added": lambda each: energy(each.energy_marginal_j),
            ">CO2e added": lambda each: carbon(each.carbon_marginal_gco2e),
            ">at once": lambda each: _beside(each, each.at_once_gco2e),
            ">own pool": lambda each: _beside(each, each.own_pool_gco2e),
        },
    )


def _beside(each: pb.WaitingAccount, otherwise_gco2e: float) -> str:
    """Return other emissions, and how much less was emitted; "": they are not known."""
    if not otherwise_gco2e:
        return ""
    saved = 1 - each.carbon_marginal_gco2e / otherwise_gco2e
    word = "less" if saved >= 0 else "more"
    return f"{carbon(otherwise_gco2e)}, {percent(abs(saved))} {word}"
