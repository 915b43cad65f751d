"""Gives the planner orders, and says what came of them."""

from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import ask, connected, first
from services.cli.console.durations import later
from services.cli.console.output import document, print_json, table
from services.kit.config.loader import load

ORDER_S = 60.0
"""An order waits for the rollout under way, if there is one."""


async def apply_proposal(config: Path, proposal_id: str, *, as_json: bool) -> None:
    """Carry out the plan of a dry run."""
    request = planner_pb2.ApplyRequest(proposal_id=proposal_id)
    answer = await ask(config, lambda clients: clients.planner.Apply(request, timeout=ORDER_S))
    plan = answer.plan
    _report_plan(plan, f"Plan {plan.version} is being rolled out.", as_json=as_json)


async def roll_back(config: Path, version: int, *, as_json: bool) -> None:
    """Carry an earlier plan out again."""
    request = planner_pb2.RollbackRequest(version=version)
    answer = await ask(config, lambda clients: clients.planner.Rollback(request, timeout=ORDER_S))
    plan = answer.plan
    sentence = f"Plan {version} is being rolled out again as plan {plan.version}, and held."
    _report_plan(plan, sentence, as_json=as_json)


async def pin_plan(config: Path, version: int, *, as_json: bool) -> None:
    """Hold the active plan."""
    request = planner_pb2.PinRequest(version=version)
    answer = await ask(config, lambda clients: clients.planner.Pin(request, timeout=ORDER_S))
    sentence = f"Plan {answer.version} is held. `cinquefoil plan unpin` lets go."
    _report({"pinned_version": answer.version}, sentence, as_json=as_json)


async def unpin_plan(config: Path, *, as_json: bool) -> None:
    """Let the planner make plans by itself again."""
    request = planner_pb2.UnpinRequest()
    await ask(config, lambda clients: clients.planner.Unpin(request, timeout=ORDER_S))
    sentence = "No plan is held; the planner makes plans by itself."
    _report({"pinned_version": 0}, sentence, as_json=as_json)


async def freeze_plans(config: Path, until: str, reason: str, *, as_json: bool) -> None:
    """Replace only lost capacity until a time."""
    try:
        end = later(until, datetime.now(UTC))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--until") from error
    request = planner_pb2.FreezeRequest(reason=reason)
    request.until.FromDatetime(end)
    await ask(config, lambda clients: clients.planner.Freeze(request, timeout=ORDER_S))
    text = end.isoformat(timespec="seconds")
    sentence = f"Frozen until {text}: only lost capacity is replaced. `cinquefoil plan unfreeze`"
    _report({"frozen_until": text}, f"{sentence} ends it.", as_json=as_json)


async def unfreeze_plans(config: Path, *, as_json: bool) -> None:
    """End a freeze."""
    request = planner_pb2.UnfreezeRequest()
    await ask(config, lambda clients: clients.planner.Unfreeze(request, timeout=ORDER_S))
    _report({"frozen_until": None}, "Not frozen; plans are carried out again.", as_json=as_json)


async def set_policy(config: Path, request: planner_pb2.SetPolicyRequest, *, as_json: bool) -> None:
    """Change how a model is served; what the request leaves out stays."""
    policy = await ask(config, lambda clients: clients.planner.SetPolicy(request, timeout=ORDER_S))
    threshold = f" (threshold {policy.intensity_threshold:g})"
    _report(
        {"model": request.model, **document(policy)},
        f"{request.model}: discipline {policy.discipline}, instance choice "
        f"{policy.instance_choice}{threshold if policy.instance_choice == 'carbondis' else ''}.",
        as_json=as_json,
    )


async def list_policies(config: Path, *, as_json: bool) -> None:
    """Show the policies of all models, as routers follow them."""
    request = planner_pb2.WatchRequest()
    async with connected(load(config)) as clients:
        found = await first(clients.planner.Watch(request))
    routes = found.routing.models if found is not None else ()
    if as_json:
        names = ("model", "discipline", "instance_choice", "intensity_threshold")
        print_json([{name: getattr(each, name) for name in names} for each in routes])
        return
    rows = table("", "model", "discipline", "instance choice", ">threshold")
    for each in routes:
        used = f"{each.intensity_threshold:g}" if each.instance_choice == "carbondis" else "-"
        rows.add_row(each.model, each.discipline, each.instance_choice, used)
    Console().print(rows)


def _report_plan(plan: plan_pb2.Plan, sentence: str, *, as_json: bool) -> None:
    pointer = f"`cinquefoil plan show {plan.version}` shows it."
    _report(plan, f"{sentence} {pointer}", as_json=as_json)


def _report(value: object, sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        typer.echo(sentence)
