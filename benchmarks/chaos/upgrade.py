"""An upgrade under load: service by service to this tree's code, and back to that of before."""

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.chaos.check import Checker
from benchmarks.chaos.faults import BOUNDED_MS, Fault, measured
from benchmarks.chaos.site import Site, two_nodes
from benchmarks.chaos.suite import VARIANTS, labels
from benchmarks.harness import Figures, Report
from services.kit.config.loader import load
from services.kit.net import free_port
from services.local.demo import model_family
from services.local.demo.digits import held_out
from services.local.up.health import until_answering
from services.local.up.process import Program
from services.local.up.suite import Suite, programs

ORDER = ("carbon", "gpuagent-node-0", "gpuagent-node-1", "router", "planner")
"""Agents and routers know what a newer planner sends."""

_START_S = 60.0


def upgrade_table(folder: Path, before: str) -> Report:
    """Return what became of requests while each service was replaced, there and back.

    Args:
        folder: For everything.
        before: Git's name of the earlier code, for example a tag.
    """
    return asyncio.run(_table(folder, before))


async def _table(folder: Path, before: str) -> Report:
    old_tree = folder / "before"
    await _git("worktree", "add", "--detach", str(old_tree), before)
    try:
        rows = await _rows(folder, old_tree)
    finally:
        await _git("worktree", "remove", "--force", str(old_tree))
    return Report([Figures(f"from {before} to this tree, and back", rows)], {"faults": rows})


async def _rows(folder: Path, old_tree: Path) -> list[dict[str, Any]]:
    model_family.train(folder / "models", lambda _: None, list(VARIANTS))
    config, router = folder / "cinquefoil.yaml", f"127.0.0.1:{free_port()}"
    config.write_text(yaml.safe_dump(two_nodes(folder, router)))
    images = folder / "images.npy"
    np.save(images, held_out()[0])
    new = {each.name: each for each in programs(load(config), config)}
    old = {name: _of(old_tree, program) for name, program in new.items()}
    old["planner"] = _taken_back_to(old_tree, old["planner"], config)
    rows, right = [], labels(folder / "models")
    async with AsyncExitStack() as stack:
        suite = await stack.enter_async_context(Suite(list(old.values()), folder / "logs"))
        await asyncio.wait_for(until_answering(router), _START_S)
        here = Site(suite, folder, router, {}, images)
        checker = await stack.enter_async_context(Checker.beside(here))
        there = [("upgrade", new[name]) for name in ORDER]
        await here.settled()
        for what, program in (*there, *(("back", old[name]) for name in reversed(ORDER))):
            fault = Fault(what, program.name, _to(program), reconnect_ms=BOUNDED_MS)
            found = await measured(here, fault, right, checker)
            rows.append(found)
            print(json.dumps(rows[-1]), file=sys.stderr)  # a run takes minutes
    return rows


def _of(tree: Path, program: Program) -> Program:
    """Return a program as another tree's code runs it."""
    return replace(program, argv=("env", f"PYTHONPATH={tree}:{tree / 'protos'}", *program.argv))


def _taken_back_to(tree: Path, planner: Program, config: Path) -> Program:
    """Return another tree's planner with what an operator does before going back to it."""
    versions = tree / "services" / "planner" / "adapters" / "store" / "migrations" / "versions"
    newest = max(file.name[1:5] for file in versions.glob("v[0-9]*.py"))
    # There is no way back from a database that is not there yet, which is where the run begins.
    downgrade = (sys.executable, "-m", "services.cli", "planner", "downgrade", newest)
    back = f"{shlex.join((*downgrade, '--config', str(config)))}; exec {shlex.join(planner.argv)}"
    return replace(planner, argv=("sh", "-c", back))


def _to(program: Program) -> Callable[[Site, str], Awaitable[None]]:
    async def do(site: Site, _service: str) -> None:
        """Set the program that the suite runs when the present one has ended by SIGTERM."""
        site.suite.members[program.name].program = program
        os.kill(site.suite.processes[program.name], signal.SIGTERM)

    return do


async def _git(*arguments: str) -> None:
    git = await asyncio.create_subprocess_exec("git", *arguments)
    if await git.wait():
        raise RuntimeError(f"git {' '.join(arguments)} failed")
