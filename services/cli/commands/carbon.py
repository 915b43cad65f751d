"""`cinquefoil carbon ...`: the carbon service, and the account of emissions."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.commands.options import DEPLOYMENT, Config, group
from services.cli.commands.serve import serve_command

app = group(
    "carbon",
    "Carbon intensity of the electricity in each zone, and the account of what was emitted.",
)
app.command("serve")(serve_command("carbon"))


@app.command()
async def report(  # noqa: PLR0913  # one argument per option
    *,
    config: Config = DEPLOYMENT,
    by: Annotated[
        Literal["model", "node", "zone", "region", "all"],
        typer.Option(
            help="Group by; region: of the clients; all: CSV and JSON keep zone, node and "
            "model apart."
        ),
    ] = "model",
    since: Annotated[str, typer.Option(help="An age (12h, 7d) or a time (UTC).")] = "7d",
    until: Annotated[str, typer.Option(help="The same. Default: now.")] = "",
    form: Annotated[
        Literal["table", "csv", "json"],
        typer.Option("--format", help="csv and json list every hour."),
    ] = "table",
    html: Annotated[
        Path | None, typer.Option(help="Also write it as one interactive HTML file.")
    ] = None,
) -> None:
    """Show energy and carbon by model, node, zone or region, and the saving against BASE.

    Hours are whole: the first is the one that --since lies in.
    """
    from services.cli.account import show_account
    from services.cli.console.durations import instant

    now = datetime.now(UTC)
    try:
        window = instant(since, now), instant(until, now) if until else now
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    await show_account(config, window, by, form, html)
