"""`cinquefoil batch ...`: requests that can wait."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json, group
from services.cli.commands.serve import serve_command

app = group("batch", "Requests that can wait: answered within hours, when that costs least carbon.")

Id = Annotated[str, typer.Argument(help="The batch's id.")]

app.command("serve")(serve_command("batch"))


@app.command()
async def submit(
    file: Annotated[
        Path,
        typer.Argument(
            help='One request per line, as OpenAI\'s Batch API: {"custom_id": "1", "method": '
            '"POST", "url": "/v1/chat/completions", "body": {"model": "...", ...}}.'
        ),
    ],
    within: Annotated[
        str, typer.Option("--within", help="Window in which it is answered: 1h, 4h, 24h, 72h.")
    ] = "24h",
    watch: Annotated[
        bool, typer.Option("--watch", help="Show its progress until it ends.")
    ] = False,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Submit a file of requests; prints the batch's id.

    All lines are for one endpoint and one model, which are read from the first.
    """
    from services.cli.batch.orders import submit as work

    await work(config, file, within, follow=watch, as_json=json)


@app.command("list")
async def list_batches(
    every: Annotated[bool, typer.Option("--all", help="Those of all callers.")] = False,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Show the newest batches: how far they are, and what they have emitted."""
    from services.cli.batch.orders import list_batches as work

    await work(config, all_owners=every, as_json=json)


@app.command()
async def show(batch: Id, config: Config = DEPLOYMENT, json: Json = False) -> None:
    """Show one batch."""
    from services.cli.batch.orders import show as work

    await work(config, batch, as_json=json)


@app.command()
async def watch(batch: Id, config: Config = DEPLOYMENT) -> None:
    """Show a batch's progress until it has ended."""
    from services.cli.batch.orders import watch as work

    await work(config, batch)


@app.command()
async def cancel(batch: Id, config: Config = DEPLOYMENT) -> None:
    """End a batch early; what was answered stays."""
    from services.cli.batch.orders import cancel as work

    await work(config, batch)


@app.command()
async def results(
    batch: Id,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; default: standard output.")
    ] = None,
    config: Config = DEPLOYMENT,
) -> None:
    """Print results, one line of JSON each, in the order of the requests."""
    from services.cli.batch.orders import results as work

    await work(config, batch, out)
