"""`cinquefoil models`: how models are served."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.commands.options import Config, Json

app = typer.Typer(name="models", help="How models are served.", no_args_is_help=True)


@app.callback()
def models() -> None:
    """Keep `models` a group although it has one command."""


@app.command("policy")
def policy(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    model: Annotated[str, typer.Argument(help="As cinquefoil.yaml names it.")],
    discipline: Annotated[
        str, typer.Option(help="Which request is the next: fcfs, edf, priority or ssjf.")
    ] = "",
    choice: Annotated[
        str,
        typer.Option(help="Who takes it: shares, idle_longest or least_expected_completion."),
    ] = "",
    reset: Annotated[
        bool, typer.Option("--reset", help="First go back to what cinquefoil.yaml says.")
    ] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show how requests are queued and instances chosen, or change it while requests wait.

    What is not given stays as it is. Routers follow at once; it holds over restarts.
    """
    from services.cli.outcome import run
    from services.cli.plan.order import set_policy
    from services.kit.settings import config_path

    run(set_policy(config_path(config), (model, discipline, choice), reset=reset, as_json=json))
