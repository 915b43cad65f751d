"""Sends orders to the planner, and prints their outcome."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from google.protobuf.message import Message

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import connected, first, query
from services.cli.console.durations import later
from services.cli.console.messages import Messages
from services.cli.console.output import document, print_json, show
from services.kit.config.loader import load

ORDER_S = 60.0
"""An order waits for the rollout under way, if there is one."""


def method(planner: Any, request: Message) -> Callable[..., Awaitable[Any]]:
    """Return the planner's method that takes a request: Pin takes a PinRequest."""
    found: Callable[..., Awaitable[Any]]
    found = getattr(planner, type(request).__name__.removesuffix("Request"))
    return found


async def give(config: Path, request: Message) -> Any:
    """Return the planner's answer to an order.

    Args:
        config: Deployment file.
        request: The order.

    Raises:
        ServiceError: The planner refuses, or does not answer.
    """
    return await query(
        config, lambda clients: method(clients.planner, request)(request, timeout=ORDER_S)
    )


async def freeze_plans(config: Path, until: str, reason: str, *, as_json: bool) -> None:
    """Replace only lost capacity until a time."""
    try:
        end = later(until, datetime.now(UTC))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--until") from error
    request = planner_pb2.FreezeRequest(reason=reason)
    request.until.FromDatetime(end)
    await give(config, request)
    text = end.isoformat(timespec="seconds")
    sentence = f"Frozen until {text}: only lost capacity is replaced. `cinquefoil plan unfreeze`"
    report({"frozen_until": text}, f"{sentence} ends it.", as_json=as_json)


async def set_policy(config: Path, request: planner_pb2.SetPolicyRequest, *, as_json: bool) -> None:
    """Change a model's policy; fields that the request leaves out stay."""
    policy = await give(config, request)
    threshold = f" (threshold {policy.intensity_threshold:g})"
    report(
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
    routes = list(found.routing.models) if found is not None else []
    columns = {
        "model": "model",
        "discipline": "discipline",
        "instance choice": "instance_choice",
        ">threshold": "intensity_threshold",
    }
    show(routes, lambda: Messages().table("", routes, columns), as_json=as_json)


def report_plan(plan: plan_pb2.Plan, sentence: str, *, as_json: bool) -> None:
    """Print a plan that is rolled out as JSON, or as a sentence that names its command."""
    pointer = f"`cinquefoil plan show {plan.version}` shows it."
    report(plan, f"{sentence} {pointer}", as_json=as_json)


def report(value: object, sentence: str, *, as_json: bool) -> None:
    """Print the outcome of an order, as JSON or as a sentence."""
    if as_json:
        print_json(value)
    else:
        typer.echo(sentence)
