"""`cinquefoil plan graph`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Version


class Format(StrEnum):
    """What to write."""

    JSON = "json"
    GRAPHML = "graphml"
    DOT = "dot"
    PNG = "png"


async def graph(
    version: Version = 0,
    format_: Annotated[
        Format,
        typer.Option("--format", help="json: node-link; graphml and dot: for graph tools; png."),
    ] = Format.JSON,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; needed for png. Default: stdout.")
    ] = None,
    config: Config = DEPLOYMENT,
) -> None:
    """Export or draw the configuration graph of a plan (CLOVER, Definition 1).

    Vertices are variants and slice types; an edge's weight is the number of segments that run the
    variant on slices of that type, with one batch size, number of processes and clock.

    For example:

    - `cinquefoil plan graph --format png --out plan.png`
    - `cinquefoil plan graph 3 --format dot | dot -Tsvg > plan.svg`
    """
    from services.cli.plan.graph import show_graph

    if format_ is Format.PNG and out is None:
        raise typer.BadParameter("--format png needs --out FILE")
    await show_graph(config, version=version, format_=format_.value, out=out)
