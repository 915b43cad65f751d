"""`cinquefoil infer`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import Config, Json


def infer(
    model: Annotated[str, typer.Argument(help="A model of the deployment file.")],
    config: Config = None,
    image: Annotated[
        int | None, typer.Option(min=0, max=718, help="Held-out handwritten digit to send.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--input", help="Array to send instead, one item or a batch.")
    ] = None,
    json: Json = False,
) -> None:
    """Send one real request and print the answer, who gave it, and what it cost.

    Without --image or --input, the first held-out digit is sent.
    """
    from services.cli.infer.send import send
    from services.cli.outcome import run
    from services.kit.settings import config_path

    if image is not None and source is not None:
        raise typer.BadParameter("give one of --image and --input, not both")
    run(send(config_path(config), model, image=image or 0, source=source, as_json=json))
