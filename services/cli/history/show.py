"""`cinquefoil history`."""

import csv
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from services.cli.client import connected
from services.cli.console.output import print_json
from services.cli.history.document import document
from services.cli.history.fetch import fetch
from services.cli.history.render import render, rows
from services.kit.config.loader import load
from services.kit.errors import NotFound


async def show(
    config: Path, hours: int, *, step_s: int = 0, model: str = "", form: str = "table"
) -> None:
    """Print the past of a deployment.

    Args:
        config: Deployment file.
        hours: Length of the window, h.
        step_s: Wanted length of a point, s; 0: the shortest possible.
        model: Show of the models only this one; "": all.
        form: "table", "csv" or "json".

    Raises:
        NotFound: There is no such model.
    """
    deployment = load(config)
    async with connected(deployment) as clients:
        found = document(await fetch(clients, hours, step_s), deployment)
    if model:
        found["models"] = [_of(found["models"], model)]
    match form:
        case "csv":
            csv.writer(sys.stdout).writerows(rows(found))
        case "json":
            print_json(found)
        case _:
            Console().print(render(found, hours))


def _of(models: list[dict[str, Any]], name: str) -> dict[str, Any]:
    known = {each["model"]: each for each in models}
    if name not in known:
        raise NotFound(f"there is no model {name!r}; there are: {', '.join(sorted(known))}")
    return known[name]
