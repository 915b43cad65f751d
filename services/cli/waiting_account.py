"""The account of requests that waited: by owner, beside what they would have emitted otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

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


_OTHERWISE: Final = {"at_once_gco2e": "at once", "own_pool_gco2e": "on replicas of their own"}


def render(entries: Sequence[pb.WaitingAccount]) -> RenderableType:
    """Return one row per owner and model, and what waiting and sharing saved in all."""
    made = Messages().table(
        "Requests that waited, of batches begun in this time",
        entries,
        {
            "owner": "owner",
            "model": "model",
            ">requests": lambda each: str(each.completed),
            ">energy": lambda each: energy(each.energy_j),
            ">added": lambda each: energy(each.energy_marginal_j),
            ">CO2e": lambda each: _mass(each.carbon_marginal_gco2e),
            ">at once": lambda each: _mass(each.at_once_gco2e),
            ">own pool": lambda each: _mass(each.own_pool_gco2e),
        },
    )
    known = [each for each in entries if each.at_once_gco2e > 0]
    words = "; ".join(
        f"{_less(known, name)} {of}"
        for name, of in (
            ("at_once_gco2e", "at once"),
            ("own_pool_gco2e", "on replicas of their own"),
        )
        if sum(getattr(each, name) for each in known) > 0
    )
    return Group(made, Text(f"CO2e is of the added energy: {words}." if words else ""))


def _less(entries: Sequence[pb.WaitingAccount], name: str) -> str:
    """Return how much less was emitted than another way, which is a field."""
    otherwise = sum(getattr(each, name) for each in entries)
    saved = 1 - sum(each.carbon_marginal_gco2e for each in entries) / otherwise
    return f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} than"


def _mass(gco2e: float) -> str:
    """Return a mass, without its substance; "": it is not known."""
    return carbon(gco2e).replace("CO2e", "") if gco2e else ""
