"""The `cinquefoil` command."""

import atexit
import gc
import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from services.cli.commands import (
    backup,
    batch,
    carbon,
    config,
    data,
    deployment,
    gpuagent,
    grid,
    models,
    nodes,
    observe,
    partition,
    pki,
    plan,
    predictor,
    regions,
    serve,
)


class Commands(TyperGroup):
    """Runs commands, also those that are coroutines, and explains expected failures.

    Its imports happen when a command runs, not for `--help`.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the command line names."""
        try:
            result = super().invoke(ctx)
            if inspect.iscoroutine(result):
                from services.cli.runner import run  # noqa: PLC0415

                result = run(result)
        except (TyperException, typer.Exit, typer.Abort):
            raise
        except BaseException:
            from services.cli.runner import explained  # noqa: PLC0415

            with explained():
                raise
        return result


app = typer.Typer(
    cls=Commands,
    name="cinquefoil",
    help=(
        "Carbon-aware ML inference serving on GPUs.\n\n"
        "Start with `cinquefoil demo`: a day of the grid in a minute. Then `cinquefoil up` starts "
        "what cinquefoil.yaml describes, `cinquefoil infer digits` sends it a request, `cinquefoil "
        "load digits` a load, and `cinquefoil status` and `cinquefoil plan list` show what it does "
        "and why."
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # services log through it: a plain traceback reads better
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - takes 20 ms

        typer.echo(f"cinquefoil {version('cinquefoil')}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options of `cinquefoil` itself, whose help text is the application's."""


app.command("demo")(deployment.demo)
app.command("init")(deployment.init)
app.command("observe")(observe.observe)
app.command("advise")(observe.advise)
app.command("up")(deployment.up)
app.command("status")(deployment.status)
app.command("history")(deployment.history)
app.command("infer")(deployment.infer)
app.command("load")(deployment.load)
app.command("receipts")(deployment.receipts)
app.command("simulate")(deployment.simulate)
app.command("profile")(gpuagent.profile)
app.command("eval")(models.evaluate)
app.command("partition")(partition.partition)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("doctor")(deployment.doctor)
app.command("health")(deployment.health)
serve.planner.command()(backup.downgrade)
for module in (plan, models, nodes, grid, regions, config, data, pki, carbon):
    app.add_typer(module.app)
for group in (serve.planner, serve.router, serve.console, gpuagent.app, predictor.app, batch.app):
    app.add_typer(group)

atexit.register(gc.freeze)  # no last look for cycles: a command ends 0.1 s of CPU sooner
