"""`cinquefoil plan list|show`."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.commands.options import Config, Json

app = typer.Typer(name="plan", help="What was decided, and why.", no_args_is_help=True)


@app.command("list")
def list_(
    config: Config = None,
    json: Json = False,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1000)] = 20,
) -> None:
    """List the newest plans, newest first."""
    from services.cli.outcome import run
    from services.cli.plan.show import show_list
    from services.kit.settings import config_path

    run(show_list(config_path(config), limit=limit, as_json=json))


@app.command()
def show(
    version: Annotated[int, typer.Argument(min=0, help="Plan version; 0: the newest.")] = 0,
    config: Config = None,
    json: Json = False,
) -> None:
    """Explain one plan: its reason, what it expected and what came of it, and its segments."""
    from services.cli.outcome import run
    from services.cli.plan.show import show_one
    from services.kit.settings import config_path

    run(show_one(config_path(config), version=version, as_json=json))
