"""Gives the planner orders, and says what came of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import ask, connected
from services.cli.console.proto_json import document, print_json
from services.kit.config.loader import load

ORDER_S = 60.0
"""An order waits for the rollout under way, if there is one."""


async def apply_proposal(config: Path, proposal_id: str, *, as_json: bool) -> None:
    """Carry out the plan of a dry run."""
    deployment = load(config)
    request = planner_pb2.ApplyRequest(proposal_id=proposal_id)
    async with connected(deployment) as clients:
        call = clients.planner.Apply(request, timeout=ORDER_S)
        plan = (await ask("planner", deployment.planner, call)).plan
    _tell_plan(plan, f"Plan {plan.version} is being rolled out.", as_json=as_json)


async def pin_plan(config: Path, version: int, *, as_json: bool) -> None:
    """Hold the active plan."""
    deployment = load(config)
    request = planner_pb2.PinRequest(version=version)
    async with connected(deployment) as clients:
        call = clients.planner.Pin(request, timeout=ORDER_S)
        held = (await ask("planner", deployment.planner, call)).version
    if as_json:
        print_json({"pinned_version": held})
    else:
        _say(f"Plan {held} is held. `cinquefoil plan unpin` lets go.")


async def unpin_plan(config: Path, *, as_json: bool) -> None:
    """Plan anew again."""
    deployment = load(config)
    async with connected(deployment) as clients:
        call = clients.planner.Unpin(planner_pb2.UnpinRequest(), timeout=ORDER_S)
        await ask("planner", deployment.planner, call)
    if as_json:
        print_json({"pinned_version": 0})
    else:
        _say("No plan is held; the planner plans anew by itself.")


async def roll_back(config: Path, version: int, *, as_json: bool) -> None:
    """Carry an earlier plan out again."""
    deployment = load(config)
    request = planner_pb2.RollbackRequest(version=version)
    async with connected(deployment) as clients:
        call = clients.planner.Rollback(request, timeout=ORDER_S)
        plan = (await ask("planner", deployment.planner, call)).plan
    said = f"Plan {version} is being rolled out again as plan {plan.version}, and held."
    _tell_plan(plan, said, as_json=as_json)


class Policy(NamedTuple):
    """How a model is to be served; what is empty, or None, stays."""

    model: str
    discipline: str = ""
    instance_choice: str = ""
    intensity_threshold: float | None = None


async def set_policy(config: Path, policy: Policy, *, reset: bool, as_json: bool) -> None:
    """Change how a model is served.

    Args:
        config: The deployment file.
        policy: What to change.
        reset: First go back to what the file says.
        as_json: How to say what is in force by now.
    """
    deployment = load(config)
    request = planner_pb2.SetPolicyRequest(**policy._asdict(), reset=reset)
    async with connected(deployment) as clients:
        call = clients.planner.SetPolicy(request, timeout=ORDER_S)
        now = await ask("planner", deployment.planner, call)
    if as_json:
        print_json(
            {
                "model": policy.model,
                "discipline": now.discipline,
                "instance_choice": now.instance_choice,
                "intensity_threshold": now.intensity_threshold,
            }
        )
    else:
        _say(f"{policy.model}: {_in_force(now)}.")


def _in_force(policy: planner_pb2.SetPolicyResponse) -> str:
    words = f"discipline {policy.discipline}, instance choice {policy.instance_choice}"
    if policy.instance_choice != "carbondis":
        return words
    return f"{words} (threshold {policy.intensity_threshold:g})"


def _tell_plan(plan: plan_pb2.Plan, sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document(plan))
    else:
        _say(f"{sentence} `cinquefoil plan show {plan.version}` shows it.")


def _say(sentence: str) -> None:
    Console().print(Text(sentence))
