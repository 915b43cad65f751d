"""Fetches plans and shows them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import ask
from services.cli.console.proto_json import document, print_json, show
from services.cli.plan.deviation import measures
from services.cli.plan.render import one, table


async def show_list(config: Path, *, limit: int, as_json: bool) -> None:
    """Print the newest plans, newest first; JSON adds to planner.v1.Plan."""
    request = planner_pb2.ListPlansRequest(page_size=limit)
    response = await ask(config, lambda clients: clients.planner.ListPlans(request))
    if as_json:
        print_json([_listed(plan, response.pinned_version) for plan in response.plans])
    else:
        Console().print(table(response.plans, response.pinned_version))


async def show_one(config: Path, *, version: int, as_json: bool) -> None:
    """Print one plan; version 0 is the newest."""
    request = planner_pb2.GetPlanRequest(version=version)
    response = await ask(config, lambda clients: clients.planner.GetPlan(request))
    show(response.plan, one, as_json=as_json)


def _listed(plan: plan_pb2.Plan, pinned_version: int) -> dict[str, Any]:
    """Return a plan with two facts more: whether it is pinned, and how it deviates."""
    return document(plan) | {
        "pinned": plan.version == pinned_version,
        "measures": [asdict(each) | {"deviation": each.deviation} for each in measures(plan)],
    }
