"""Shows the status once, or again and again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.live import Live

from services.cli.client import connected
from services.cli.status.fetch import fetch
from services.cli.status.render import render
from services.cli.status.view import Status
from services.kit.config.loader import load


async def show(config: Path, *, as_json: bool) -> bool:
    """Print the status once; return whether every service answered."""
    async with connected(load(config)) as clients:
        status = await fetch(clients)
    console = Console()
    if as_json:
        console.print_json(_json(status))
    else:
        console.print(render(status))
    return not status.problems


async def follow(config: Path, *, as_json: bool, interval_s: float) -> None:
    """Print the status again and again until cancelled: a live table, or a line of JSON each."""
    console = Console()
    async with connected(load(config)) as clients:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                status = await fetch(clients)
                if as_json:
                    console.out(_json(status), highlight=False)
                else:
                    live.update(render(status), refresh=True)
                await asyncio.sleep(interval_s)


def _json(status: Status) -> str:
    return json.dumps(asdict(status))
