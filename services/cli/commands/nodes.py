"""`cinquefoil nodes ...`: the nodes, and orders about them."""

from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json, group

app = group("nodes", "Nodes: which there are, and which of them plans may use.")

Node = Annotated[str, typer.Argument(help="Name of the node.")]


@app.command("list")
async def list_(config: Config = DEPLOYMENT, json: Json = False) -> None:
    """List the nodes of the deployment file and those that joined, with orders about them."""
    from services.cli.nodes import show_list

    await show_list(config, as_json=json)


@app.command()
async def cordon(node: Node, config: Config = DEPLOYMENT) -> None:
    """Leave a node out of the next plan, whatever causes it; over restarts of the planner too.

    Its segments serve until then.
    """
    from cinquefoil.planner.v1.planner_pb2 import CordonNodeRequest
    from services.cli.plan.orders import give

    await give(config, CordonNodeRequest(node=node))
    back = f"`cinquefoil nodes uncordon {node}` takes it into use."
    typer.echo(f"The next plan leaves {node} out. {back}")


@app.command()
async def drain(
    node: Node,
    config: Config = DEPLOYMENT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan without the node; change nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing runs there.")] = False,
    json: Json = False,
) -> None:
    """Move a node's segments to others now, as far as they have room; then as `cordon`.

    --json is for --dry-run.
    """
    from services.cli import nodes

    if dry_run:
        await nodes.dry_run(config, node, as_json=json)
    else:
        await nodes.drain(config, node, wait=wait)


@app.command()
async def uncordon(node: Node, config: Config = DEPLOYMENT) -> None:
    """Return a node to the plans' use."""
    from cinquefoil.planner.v1.planner_pb2 import UncordonNodeRequest
    from services.cli.plan.orders import give

    await give(config, UncordonNodeRequest(node=node))
    typer.echo(f"Plans may use {node}.")


@app.command()
async def forget(node: Node, config: Config = DEPLOYMENT) -> None:
    """Remove an unreachable node, so that other nodes may have its GPUs.

    One that joined is removed as a whole, also without this order after `join.forget_after_s`; one
    that the deployment file names stays in it.
    """
    from cinquefoil.planner.v1.planner_pb2 import ForgetNodeRequest
    from services.cli.plan.orders import give

    await give(config, ForgetNodeRequest(node=node))
    typer.echo(f"{node} is forgotten; it may join again.")
