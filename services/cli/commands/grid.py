"""`cinquefoil grid ...`: times in which a site may draw less power."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json, group

app = group(
    "grid",
    "Grid events: times in which a site may draw less power.\n\n"
    "Utilities announce them by OpenADR (`grid.openadr`) or MQTT, operators here. Where several "
    "are in force the strictest counts.",
)

EventName = Annotated[str, typer.Argument(help="Name of the event.")]


@app.command()
async def event(  # noqa: PLR0913, PLR0917 - one argument per option
    site: Annotated[str, typer.Option(help="Site of the deployment file.")] = "",
    limit: Annotated[
        str,
        typer.Option(help="Most power: 20kW, 750W; a share of the baseline: 75%; less: -5kW."),
    ] = "",
    level: Annotated[int, typer.Option(min=0, help="Level of grid.levels instead of --limit.")] = 0,
    start: Annotated[
        str,
        typer.Option("--from", help="Start: 17:00 (UTC), 2h, a date. Default: now."),
    ] = "",
    length: Annotated[str, typer.Option("--for", help="Length: 3h, 30m.")] = "",
    until: Annotated[str, typer.Option(help="End instead of --for.")] = "",
    ramp: Annotated[str, typer.Option(help="Time in which the limit falls: 15m.")] = "0s",
    priority: Annotated[int, typer.Option(min=0, help="Importance; lower is more.")] = 0,
    name: Annotated[str, typer.Option(help="Name. Default: the planner chooses.")] = "",
    file: Annotated[
        Path | None,
        typer.Option(help="YAML or JSON file with a list of events instead of the options."),
    ] = None,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Announce an event; one that begins now is enforced within seconds."""
    from services.cli.grid import orders

    if file is not None:
        await orders.announce_file(config, file, as_json=json)
        return
    order = orders.Order(site, limit, level, start, length, until, ramp, priority, name)
    await orders.announce(config, order, as_json=json)


@app.command("list")
async def list_(
    all_: Annotated[bool, typer.Option("--all", help="Those that are over, too.")] = False,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """List events, and each site's power now."""
    from services.cli.grid.show import show_list

    await show_list(config, over=all_, as_json=json)


@app.command()
async def cancel(name: EventName, config: Config = DEPLOYMENT) -> None:
    """End an event now."""
    from cinquefoil.planner.v1.planner_pb2 import CancelGridEventRequest
    from services.cli.plan.orders import give

    await give(config, CancelGridEventRequest(event_id=name))
    typer.echo(f"{name} is cancelled: its limit has ended.")


@app.command()
async def report(
    name: EventName,
    form: Annotated[
        Literal["text", "html", "csv", "json"], typer.Option("--format", help="Form of the report.")
    ] = "text",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; default: standard output.")
    ] = None,
    config: Config = DEPLOYMENT,
) -> None:
    """Report metered power, baseline, what was promised and shed, and objectives kept."""
    from services.cli.grid.report import write_report

    await write_report(config, name, form, output)
