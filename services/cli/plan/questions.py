"""Asks the planner, and shows its answers."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cinquefoil.planner.v1 import planner_pb2
from services.cli.client import TIMEOUT_S, ask, connected
from services.cli.console.proto_json import document, print_json
from services.cli.plan.render_explanation import difference, explanation, proposal
from services.kit.config.loader import load
from services.kit.errors import FailedPrecondition

THINKING_S = 120.0
"""Solving takes seconds on large fleets, and a runner-up takes some more."""


async def dry_run(config: Path, what_if: planner_pb2.WhatIf, *, apply: bool, as_json: bool) -> None:
    """Print what would be decided; apply it where that is asked for.

    Raises:
        FailedPrecondition: It is to be applied, and cannot be: its circumstances were made up.
    """
    deployment = load(config)
    async with connected(deployment) as clients:
        asked = planner_pb2.DryRunRequest(what_if=what_if)
        call = clients.planner.DryRun(asked, timeout=THINKING_S)
        answer = await ask("planner", deployment.planner, call)
        applied = None
        if apply:
            if not answer.proposal_id:
                raise FailedPrecondition(
                    "--apply: this plan is for a demand, an intensity or GPUs that are not the "
                    "present ones; nothing was changed. Leave those options out to apply a plan."
                )
            order = planner_pb2.ApplyRequest(proposal_id=answer.proposal_id)
            made = clients.planner.Apply(order, timeout=TIMEOUT_S)
            applied = (await ask("planner", deployment.planner, made)).plan
    if as_json:
        print_json(document(answer) | ({"applied": document(applied)} if applied else {}))
    else:
        Console().print(proposal(answer, applied.version if applied else None))


async def explain(config: Path, *, version: int, as_json: bool) -> None:
    """Print why a plan is as it is."""
    deployment = load(config)
    request = planner_pb2.ExplainRequest(version=version)
    async with connected(deployment) as clients:
        call = clients.planner.Explain(request, timeout=THINKING_S)
        answer = (await ask("planner", deployment.planner, call)).explanation
    if as_json:
        print_json(document(answer))
    else:
        Console().print(explanation(answer))


async def diff(config: Path, from_version: int, to_version: int, *, as_json: bool) -> None:
    """Print how two plans differ."""
    deployment = load(config)
    request = planner_pb2.DiffRequest(from_version=from_version, to_version=to_version)
    async with connected(deployment) as clients:
        call = clients.planner.Diff(request, timeout=TIMEOUT_S)
        answer = (await ask("planner", deployment.planner, call)).diff
    if as_json:
        print_json(document(answer))
    else:
        Console().print(difference(answer))
