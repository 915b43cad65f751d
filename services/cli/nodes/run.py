"""Lists nodes, and gives the planner orders about them."""

import asyncio
from datetime import UTC
from pathlib import Path

import typer
from rich.console import Console

from cinquefoil.planner.v1 import planner_pb2 as pb
from services.cli.client import Clients, ask, connected
from services.cli.console.names import gpu_names
from services.cli.console.output import print_json, show, table, working
from services.cli.plan.orders import ORDER_S
from services.cli.plan.render_explanation import proposal
from services.kit.config.loader import load
from services.kit.errors import NotFound

_LOOK_S = 1.0


async def show_list(config: Path, *, as_json: bool) -> None:
    """Print every node."""
    fleet = await ask(config, lambda clients: clients.planner.GetFleet(pb.GetFleetRequest()))
    nodes = sorted(fleet.nodes, key=lambda each: each.node.name)
    if as_json:
        print_json([_row(each) for each in nodes])
        return
    rows = table("", "node", "zone", ">GPUs", ">segments", "state", "known by", "agent")
    for each in nodes:
        state = "connected" if each.connected else "away"
        rows.add_row(
            each.node.name,
            each.node.zone,
            str(len(each.node.gpus)),
            str(len(each.node.segments)),
            f"{state}{_ordered(each)}",
            "itself" if each.joined else "file",
            each.address,
        )
    Console().print(rows)


def _ordered(each: pb.FleetNode) -> str:
    if not each.HasField("order"):
        return ""
    by = f" by {each.order.principal}" if each.order.principal else ""
    return f", {'drain' if each.order.drain else 'cordon'}{by}"


def _row(each: pb.FleetNode) -> dict[str, str | int | bool | None]:
    ordered = each.HasField("order")
    return {
        "node": each.node.name,
        "zone": each.node.zone,
        "gpus": len(each.node.gpus),
        "segments": len(each.node.segments),
        "connected": each.connected,
        "joined": each.joined,
        "address": each.address,
        "order": ("drain" if each.order.drain else "cordon") if ordered else "",
        "ordered_by": each.order.principal,
        "ordered_at": each.order.at.ToDatetime(UTC).isoformat() if ordered else None,
    }


async def dry_run(config: Path, node: str, *, as_json: bool) -> None:
    """Print the plan that would be made without a node."""
    request = pb.CordonNodeRequest(node=node, drain=True, dry_run=True)
    async with connected(load(config)) as clients:
        with working(f"The planner solves without {node}"):
            answer = await clients.planner.CordonNode(request, timeout=ORDER_S)
        gpus = {} if as_json else await gpu_names(clients.planner)
    show(answer.outcome, lambda: proposal(answer.outcome, gpus), as_json=as_json)


async def drain(config: Path, node: str, *, wait: bool) -> None:
    """Have what runs on a node moved to others now; with `wait`, return when nothing runs there."""
    async with connected(load(config)) as clients:
        request = pb.CordonNodeRequest(node=node, drain=True)
        await clients.planner.CordonNode(request, timeout=ORDER_S)
        typer.echo(f"What runs on {node} is being moved to other nodes.")
        left = await _segments(clients, node) if wait else 0
        while left:
            await asyncio.sleep(_LOOK_S)
            left = await _segments(clients, node)
        if wait:
            typer.echo(f"Nothing runs on {node}.")


async def _segments(clients: Clients, node: str) -> int:
    fleet = await clients.planner.GetFleet(pb.GetFleetRequest())
    for each in fleet.nodes:
        if each.node.name == node:
            return len(each.node.segments)
    raise NotFound(f"node: there is no node {node!r} any more", field="node")
