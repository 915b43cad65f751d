"""Three faults at a time, drawn by a seed, again and again; goes on where it was interrupted."""

import asyncio
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import grpc

from benchmarks.chaos.books import row
from benchmarks.chaos.check import Checker
from benchmarks.chaos.faults import BOUNDED_MS, FAULTS, Fault
from benchmarks.chaos.site import Site, site
from benchmarks.chaos.suite import labels
from benchmarks.harness import Figures, Report

LOAD_S = 30.0
AT_ONCE = 3
WITHIN_S = 10.0
"""Faults begin within this time, from the third second of the load on, s."""

FIRST_S = 3.0


def seeds_table(folder: Path, seeds: Iterable[int], done: Path) -> Report:
    """Return a row per seed.

    Args:
        folder: For the suite.
        seeds: Seeds by which faults are drawn.
        done: Rows of seeds that were run, one JSON object a line; these are not run again.
    """
    return asyncio.run(_table(folder, tuple(seeds), done))


async def _table(folder: Path, seeds: tuple[int, ...], done: Path) -> Report:
    known = await asyncio.to_thread(_read, done)
    async with site(folder) as here, Checker.beside(here) as checker:
        right = labels(folder / "models")
        for seed in seeds:
            if seed in known:
                continue
            await here.settled()
            known[seed] = await _drawn(here, checker, seed, right)
            await asyncio.to_thread(_append, done, known[seed])
            print(json.dumps(known[seed]), file=sys.stderr)
    rows = [known[seed] for seed in seeds]
    return Report([Figures(f"{AT_ONCE} faults at a time", rows)], {"seeds": rows})


async def _drawn(here: Site, checker: Checker, seed: int, right: dict[str, Any]) -> dict[str, Any]:
    rng = Random(seed)  # faults, no secret
    drawn = [fault for fault in FAULTS if fault.drawn and not fault.needs]
    faults = [(rng.uniform(0, WITHIN_S), rng.choice(drawn)) for _ in range(AT_ONCE)]
    await checker.begin()
    at_s = time.monotonic() + FIRST_S
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(here.load(LOAD_S, BOUNDED_MS), name="chaos.load")
        for after_s, fault in faults:
            tasks.create_task(_later(here, fault, FIRST_S + after_s), name="chaos.fault")
        ends = await loading
    what = " + ".join(f"{fault.name}/{fault.service}" for _, fault in faults)
    await here.settled()
    found = await checker.found(ends)
    return {"seed": seed, **row(what, "", ends, right, at_s), **found}


async def _later(here: Site, fault: Fault, after_s: float) -> None:
    await asyncio.sleep(after_s)
    try:
        await fault.do(here, fault.service)
    except (grpc.aio.AioRpcError, OSError, LookupError) as error:
        # Another fault has taken what this one is for, or the planner that knows where it is.
        print(f"{fault.name}/{fault.service}: {error!r}", file=sys.stderr)


def _read(done: Path) -> dict[int, dict[str, Any]]:
    if not done.exists():
        return {}
    rows = [json.loads(line) for line in done.read_text().splitlines()]
    return {each["seed"]: each for each in rows}


def _append(done: Path, found: dict[str, Any]) -> None:
    done.parent.mkdir(parents=True, exist_ok=True)
    with done.open("a") as file:
        file.write(json.dumps(found) + "\n")
