"""Lists nodes, and sends the planner orders about them."""

import asyncio
from pathlib import Path

import typer
from rich.console import Group

from cinquefoil.condition.v1.records import ConditionKind
from cinquefoil.gpuagent.v1.gpuagent_pb2 import GetEnergyRequest, GetNodeRequest
from cinquefoil.planner.v1 import planner_pb2 as pb
from services.cli.client import Clients, connected, deployment_with, query
from services.cli.console.messages import Cell, Messages
from services.cli.console.names import gpu_names
from services.cli.console.output import condition_lines, document, show, working
from services.cli.plan.orders import ORDER_S
from services.cli.plan.render import proposal
from services.cli.reasons import say_holds
from services.cli.status.document import gpus_of
from services.cli.status.render import gpu_bars, gpu_table
from services.kit.config.loader import load
from services.kit.errors import NotFound
from services.kit.rpc.condition_messages import conditions_from

_LOOK_S = 1.0


async def show_list(config: Path, *, as_json: bool) -> None:
    """Print every node."""
    fleet = await query(config, lambda clients: clients.planner.GetFleet(pb.GetFleetRequest()))
    nodes = sorted(fleet.nodes, key=lambda each: each.node.name)
    columns: dict[str, Cell] = {
        "node": "node.name",
        "zone": "node.zone",
        ">GPUs": lambda each: str(len(each.node.gpus)),
        ">segments": lambda each: str(len(each.node.segments)),
        "state": lambda each: f"{'connected' if each.connected else 'away'}{_ordered(each)}",
        "known by": lambda each: "itself" if each.joined else "file",
        "agent": "address",
    }
    found = conditions_from(fleet.conditions)
    away = [each for each in found if each.kind is ConditionKind.NODE_AWAY]
    show(
        nodes,
        lambda: Group(Messages().table("", nodes, columns), *condition_lines(away)),
        as_json=as_json,
    )


def _ordered(each: pb.FleetNode) -> str:
    if not each.HasField("order"):
        return ""
    by = f" by {each.order.principal}" if each.order.principal else ""
    return f", {'drain' if each.order.drain else 'cordon'}{by}"


async def show_gpus(config: Path, node: str, *, as_json: bool) -> None:
    """Print the GPUs of a node, as its agent knows them, and the conditions of the node."""
    async with connected(await deployment_with(config, node)) as clients:
        found = await clients.agents[node].GetNode(GetNodeRequest())
        energy = (await clients.agents[node].GetEnergy(GetEnergyRequest())).gpus
    gpus = list(gpus_of(pb.FleetNode(node=found.node, energy=energy, connected=True)))
    conditions = conditions_from(found.node.conditions)
    show(
        document(found) | {"energy": list(energy)},
        lambda: Group(gpu_table(gpus, detailed=True), gpu_bars(gpus), *condition_lines(conditions)),
        as_json=as_json,
    )


async def dry_run(config: Path, node: str, *, as_json: bool) -> None:
    """Print the plan that would be made without a node."""
    request = pb.CordonNodeRequest(node=node, drain=True, dry_run=True)
    async with connected(load(config)) as clients:
        with working(f"The planner solves without {node}"):
            answer = await clients.planner.CordonNode(request, timeout=ORDER_S)
        gpus = {} if as_json else await gpu_names(clients.planner)
    show(answer.outcome, lambda: proposal(answer.outcome, gpus), as_json=as_json)


async def drain(config: Path, node: str, *, wait: bool) -> None:
    """Move a node's segments to others now; with `wait`, return when none runs there."""
    async with connected(load(config)) as clients:
        request = pb.CordonNodeRequest(node=node, drain=True)
        await clients.planner.CordonNode(request, timeout=ORDER_S)
        typer.echo(f"What runs on {node} is being moved to other nodes.")
        await say_holds(clients)
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
