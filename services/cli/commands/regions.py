"""`cinquefoil regions ...`: peer regions, and what goes between them."""

from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json, group

app = group("regions", "Regions: which there are, what goes between them, and draining this one.")


@app.command("list")
async def list_(config: Config = DEPLOYMENT, json: Json = False) -> None:
    """List this region and its peers: carbon of a request, grants, and what goes and comes."""
    from services.cli.regions.show import show_list

    await show_list(config, as_json=json)


@app.command()
async def drain(
    config: Config = DEPLOYMENT,
    resume: Annotated[bool, typer.Option("--resume", help="Grant again.")] = False,
) -> None:
    """Take no more requests from other regions: their grants run out within half a minute.

    Until `--resume`, or a restart of the planner.
    """
    from services.cli.regions.show import order_drain

    await order_drain(config, resume=resume)
    back = "Other regions get grants again." if resume else "`--resume` grants again."
    typer.echo(back if resume else f"Other regions' grants run out within 35 s. {back}")
