"""Queries plans, explanations, differences and proposals of the planner, and shows them."""

from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import connected, query
from services.cli.console.names import gpu_names
from services.cli.console.output import document, print_json, show, working
from services.cli.console.releases import sentences
from services.cli.plan.deviation import documents
from services.cli.plan.render import difference, explanation, listed, one, proposal
from services.cli.reasons import PlannerView
from services.kit.config.loader import load
from services.kit.errors import FailedPrecondition

SOLVE_S = 120.0
"""Solving takes seconds on large fleets, and a runner-up takes some more."""


async def show_list(config: Path, *, limit: int, as_json: bool) -> None:
    """Print the newest plans, newest first; JSON adds to planner.v1.Plan."""
    request = planner_pb2.ListPlansRequest(page_size=limit)
    async with connected(load(config)) as clients:
        response = await clients.planner.ListPlans(request)
        why = "" if response.plans else (await PlannerView.of(clients)).why_no_plan()
    show(
        [with_measures(plan, response) for plan in response.plans],
        lambda: (
            Text(f"No plan yet: {why}")
            if why
            else listed(response.plans, response.pinned_version, response.pinned_by)
        ),
        as_json=as_json,
    )


async def show_one(config: Path, *, version: int, as_json: bool) -> None:
    """Print one plan; version 0 is the newest."""
    request = planner_pb2.GetPlanRequest(version=version)
    async with connected(load(config)) as clients:
        plan = (await clients.planner.GetPlan(request)).plan
        gpus = {} if as_json else await gpu_names(clients.planner)
    show(plan, lambda: one(plan, gpus), as_json=as_json)


async def dry_run(config: Path, what_if: planner_pb2.WhatIf, *, apply: bool, as_json: bool) -> None:
    """Print the plan for some circumstances; carry it out on request.

    Raises:
        FailedPrecondition: The plan is to be carried out, and its circumstances are not the
            present ones.
    """
    async with connected(load(config)) as clients:
        request = planner_pb2.DryRunRequest(what_if=what_if)
        with working("The planner solves"):
            answer = await clients.planner.DryRun(request, timeout=SOLVE_S)
        gpus = {} if as_json else await gpu_names(clients.planner)
        applied = None
        if apply:
            if not answer.proposal_id:
                raise FailedPrecondition(
                    "--apply: this plan is for a demand, an intensity or GPUs that are not the "
                    "present ones; nothing was changed. Leave those options out to apply a plan."
                )
            order = planner_pb2.ApplyRequest(proposal_id=answer.proposal_id)
            applied = (await clients.planner.Apply(order)).plan
    version = applied.version if applied else None
    value = document(answer) | ({"applied": applied} if applied else {})
    show(
        value,
        lambda: Group(proposal(answer, gpus, version), *sentences(answer.releases)),
        as_json=as_json,
    )


async def explain(config: Path, *, version: int, as_json: bool) -> None:
    """Print the explanation of a plan."""
    request = planner_pb2.ExplainRequest(version=version)
    with working("The planner solves for what else there is"):
        answer = await query(
            config, lambda clients: clients.planner.Explain(request, timeout=SOLVE_S)
        )
    value = document(answer.explanation) | {
        "releases": [document(each) for each in answer.releases]
    }
    show(
        value,
        lambda: Group(explanation(answer.explanation), *sentences(answer.releases)),
        as_json=as_json,
    )


async def diff(config: Path, from_version: int, to_version: int, *, as_json: bool) -> None:
    """Print the differences between two plans."""
    request = planner_pb2.DiffRequest(from_version=from_version, to_version=to_version)
    async with connected(load(config)) as clients:
        found = (await clients.planner.Diff(request)).diff
        if as_json:
            print_json(found)
            return
        later = planner_pb2.GetPlanRequest(version=found.to_version)
        segments = (await clients.planner.GetPlan(later)).plan.segments
        gpus = await gpu_names(clients.planner)
    Console().print(difference(found, segments, gpus))


def with_measures(
    plan: plan_pb2.Plan, listed: planner_pb2.ListPlansResponse | None = None
) -> dict[str, Any]:
    """Return a plan for JSON, with its measures; one of a list also says who pinned it."""
    found = document(plan) | {"measures": documents(plan)}
    if listed is None:
        return found
    pinned = plan.version == listed.pinned_version
    return found | {"pinned": pinned, "pinned_by": listed.pinned_by if pinned else ""}
