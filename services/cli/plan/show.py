"""Fetches plans and shows them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import TIMEOUT_S, ask, connected
from services.cli.console.proto_json import document, print_json
from services.cli.plan.deviation import measures
from services.cli.plan.render import one, table
from services.kit.config.loader import load


async def show_list(config: Path, *, limit: int, as_json: bool) -> None:
    """Print the newest plans, newest first; JSON adds to planner.v1.Plan."""
    deployment = load(config)
    request = planner_pb2.ListPlansRequest(page_size=limit)
    async with connected(deployment) as clients:
        call = clients.planner.ListPlans(request, timeout=TIMEOUT_S)
        response = await ask("planner", deployment.planner, call)
    if as_json:
        print_json([_listed(plan, response.pinned_version) for plan in response.plans])
    else:
        Console().print(table(response.plans, response.pinned_version))


async def show_one(config: Path, *, version: int, as_json: bool) -> None:
    """Print one plan; version 0 is the newest."""
    deployment = load(config)
    request = planner_pb2.GetPlanRequest(version=version)
    async with connected(deployment) as clients:
        call = clients.planner.GetPlan(request, timeout=TIMEOUT_S)
        response = await ask("planner", deployment.planner, call)
    if as_json:
        print_json(document(response.plan))
    else:
        Console().print(one(response.plan))


def _listed(plan: plan_pb2.Plan, pinned_version: int) -> dict[str, Any]:
    """Return a plan with what is not in it: whether it is held, and how it deviates."""
    return document(plan) | {
        "pinned": plan.version == pinned_version,
        "measures": [asdict(each) | {"deviation": each.deviation} for each in measures(plan)],
    }
