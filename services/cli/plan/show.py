"""Fetches plans and shows them."""

from __future__ import annotations

import json
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from rich.console import Console

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import TIMEOUT_S, ask, connected
from services.cli.plan.render import one, table
from services.kit.settings import load


async def show_list(config: Path, *, limit: int, as_json: bool) -> None:
    """Print the newest plans, newest first; JSON is protobuf's mapping of planner.v1.Plan."""
    deployment = load(config)
    request = planner_pb2.ListPlansRequest(page_size=limit)
    async with connected(deployment) as clients:
        call = clients.planner.ListPlans(request, timeout=TIMEOUT_S)
        response = await ask("planner", deployment.planner, call)
    console = Console()
    if as_json:
        console.print_json(json.dumps([_dict(plan) for plan in response.plans]))
    else:
        console.print(table(response.plans))


async def show_one(config: Path, *, version: int, as_json: bool) -> None:
    """Print one plan; version 0 is the newest."""
    deployment = load(config)
    request = planner_pb2.GetPlanRequest(version=version)
    async with connected(deployment) as clients:
        call = clients.planner.GetPlan(request, timeout=TIMEOUT_S)
        response = await ask("planner", deployment.planner, call)
    console = Console()
    if as_json:
        console.print_json(json.dumps(_dict(response.plan)))
    else:
        console.print(one(response.plan))


def _dict(plan: plan_pb2.Plan) -> dict[str, object]:
    return MessageToDict(plan, preserving_proto_field_name=True)
