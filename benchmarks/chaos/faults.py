"""Faults against services, one after the other, under Poisson load from a foreign client.

Each row of the table is one fault: three seconds after the load begins it is done to a service of a
running suite of two simulated nodes, either of which can carry the load alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaos import trouble
from benchmarks.chaos.books import row
from benchmarks.chaos.check import Checker
from benchmarks.chaos.site import PROXIED, Site, site
from benchmarks.chaos.suite import labels
from benchmarks.harness import Figures, Report

BEFORE_S, AFTER_S = 3.0, 9.0
"""Load before a fault, and from it on, s."""

BOUNDED_MS = 500
"""Interval that docs/operations.md advises clients to set, ms."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and the service that it hits.

    Attributes:
        name: As in the table.
        service: The service that it hits.
        do: Does it, and returns when it is over.
        needs: As `site` takes it.
        reconnect_ms: As `Site.load` takes it.
        drawn: The fault may come together with others.
    """

    name: str
    service: str
    do: Callable[[Site, str], Awaitable[None]]
    needs: str = ""
    reconnect_ms: int = 0
    drawn: bool = True


SERVICES = ("worker", "gpuagent", "planner", "carbon", "router")
_DISKS = ("planner", "gpuagent") if os.geteuid() == 0 else ()  # to mount is root's
_MACHINES = ("gpuagent",) if os.geteuid() == 0 else ()  # as are network namespaces
_CLOCKS = ("planner", "gpuagent", "carbon", "router")
_ENDS_THE_LEAD = ("kill -9", "SIGTERM", "SIGSTOP, SIGCONT")
_KILL, _TERM = trouble.signalled(signal.SIGKILL), trouble.signalled(signal.SIGTERM)
FAULTS = (
    *(Fault("kill -9", name, _KILL) for name in SERVICES),
    *(Fault("SIGTERM", name, _TERM) for name in SERVICES),
    *(Fault("SIGSTOP, SIGCONT", name, trouble.paused) for name in SERVICES),
    *(Fault("black hole", name, trouble.cut_off) for name in PROXIED),
    Fault("kill -9, client reconnects in 0.5 s", "router", _KILL, reconnect_ms=BOUNDED_MS),
    *(Fault("full disk", name, trouble.full_disk) for name in _DISKS),
    *(Fault("read-only disk", name, trouble.read_only_disk) for name in _DISKS),
    *(Fault("kill -9, read-only disk", name, trouble.killed_read_only) for name in _DISKS),
    *(
        Fault("kill -9, planners' disk full", name, trouble.killed_without_a_lease, "", BOUNDED_MS)
        for name in ("router",)
        if _DISKS
    ),
    Fault("damaged account, kill -9", "gpuagent", trouble.damaged_account, drawn=False),
    Fault("damaged journal, kill -9", "gpuagent", trouble.damaged_journal, drawn=False),
    Fault("damaged database, restored", "planner", trouble.damaged_database, drawn=False),
    *(Fault("clock +1 h, and back", name, trouble.clock_jump, needs="clock") for name in _CLOCKS),
    *(
        Fault("network of its machine cut", name, trouble.machine_cut, needs="namespaces")
        for name in _MACHINES
    ),
    Fault("restart", "postgresql", trouble.database_restart, needs="postgresql"),
    Fault("kill -9", "postgresql", trouble.database_killed, needs="postgresql"),
    Fault("read-only", "postgresql", trouble.database_read_only, needs="postgresql"),
)


def faults_table(folder: Path, wanted: Iterable[str]) -> Report:
    """Return the table of faults.

    Args:
        folder: For everything.
        wanted: Faults as "name/service"; none: all.
    """
    return asyncio.run(_table(folder, tuple(wanted)))


async def _table(folder: Path, wanted: tuple[str, ...]) -> Report:
    chosen = [each for each in FAULTS if not wanted or f"{each.name}/{each.service}" in wanted]
    rows: list[dict[str, Any]] = []
    for needs in dict.fromkeys(fault.needs for fault in chosen):
        place = folder / (needs or "plain")
        async with site(place, needs) as here, Checker.beside(here) as checker:
            right = labels(place / "models")
            for fault in (each for each in chosen if each.needs == needs):
                await here.settled()
                rows.append(await measured(here, fault, right, checker))
                print(json.dumps(rows[-1]), file=sys.stderr)  # a run takes minutes
    return Report([Figures("faults", rows)], {"benchmark": "chaos", "faults": rows})


async def measured(
    here: Site, fault: Fault, right: Mapping[str, Any], checker: Checker
) -> dict[str, Any]:
    """Do one fault under load; return its row.

    Args:
        here: A suite that has settled.
        fault: The fault.
        right: The right label of each image, by variant.
        checker: Beside the suite.
    """
    await checker.begin()
    async with asyncio.TaskGroup() as tasks:
        load = here.load(BEFORE_S + AFTER_S, fault.reconnect_ms)
        loading = tasks.create_task(load, name="chaos.load")
        await asyncio.sleep(BEFORE_S + 1)  # a second for the client to start
        term, at_s = (await here.leader()).term, time.monotonic()
        leading = None
        if fault.service == "planner" and fault.name in _ENDS_THE_LEAD:
            leading = tasks.create_task(here.led_again_s(term), name="chaos.leader")
        await fault.do(here, fault.service)
        ends = await loading
        led_again_s = 0.0 if leading is None else await leading
    await here.settled()
    found = row(fault.name, fault.service, ends, dict(right), at_s)
    return found | {"led_again_s": led_again_s} | await checker.found(ends)
