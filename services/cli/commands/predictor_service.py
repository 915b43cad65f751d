"""`cinquefoil predictor serve|status|forget`: the service, and what an operator asks of it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json
from services.cli.commands.serve import WithParent, launch_service


def serve(
    config: Config = DEPLOYMENT,
    no_persist: Annotated[
        bool, typer.Option("--no-persist", help="Write nothing of prompts to the disk.")
    ] = False,
    with_parent: WithParent = False,
) -> None:
    """Run the predictor service until SIGTERM."""
    if no_persist:
        os.environ["CINQUEFOIL_PREDICTOR__CACHE__PERSIST"] = "false"
    launch_service("predictor", config, with_parent=with_parent)


async def status(config: Config = DEPLOYMENT, json: Json = False) -> None:
    """Show what was foretold, by whom, how fast, and how often the class was right."""
    from services.cli.predictor.queries import status as work

    await work(config, as_json=json)


async def forget(
    config: Config = DEPLOYMENT,
    model: Annotated[str, typer.Option("--model", help="Prompts of this model.")] = "",
    older_than: Annotated[
        str, typer.Option("--older-than", help="Prompts not used for so long: 12h, 7d, ...")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="All prompts of all models.")] = False,
) -> None:
    """Delete what is remembered of prompts, from memory and from the disk."""
    from cinquefoil.predictor.v1.predictor_pb2 import ForgetRequest
    from services.cli.console.durations import seconds
    from services.cli.predictor.queries import forget as work

    request = ForgetRequest(model=model, everything=everything)
    if older_than:
        try:
            request.unused_for.FromSeconds(seconds(older_than))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--older-than") from error
    if not (model or older_than or everything):
        raise typer.BadParameter("give --model, --older-than or --all")
    await work(config, request)
