"""Plays one history in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.simulation import machine, path
from tests.simulation.cluster import MODELS, SERVICES, Cluster
from tests.simulation.histories import Faults, History
from tests.simulation.invariants import SETTLES_S, Invariants
from tests.simulation.machine import now_s
from tests.simulation.network import net

_LOOK_S: Final = 0.25
_FIRST_S: Final = 60.0
_SERVES_S: Final = 30.0
_MEMORY: Final = "/dev/shm"  # noqa: S108 - simulated disks need no real one


@dataclass
class Outcome:
    """Result of a history.

    Attributes:
        broken: Invariants that did not hold.
        digest: Of all messages and their times.
        states: States that it visited.
        virtual_s, cpu_s: Its length, and what it took.
        heard: What clients heard.
        gap_s: Longest time without an answer, by model.
        settled_s: Time after the last fault until all was as planned.
        messages: Messages sent.
    """

    broken: list[str] = field(default_factory=list)
    digest: str = ""
    states: list[str] = field(default_factory=list)
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    heard: dict[str, int] = field(default_factory=dict)
    gap_s: dict[str, float] = field(default_factory=dict)
    settled_s: float = 0.0
    messages: int = 0


def play(history: History) -> Outcome:
    """Play a history in a child process, which begins as this one is."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _child(history, write)
        except BaseException:  # noqa: BLE001 - the parent says it
            outcome = Outcome(broken=[traceback.format_exc()[-1500:]])
            os.write(write, json.dumps(asdict(outcome)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return Outcome(**json.loads(data)) if data else Outcome(broken=["the simulation died"])


def _child(history: History, write: int) -> None:
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    began_s = machine.cpu_s()
    room = _MEMORY if os.path.isdir(_MEMORY) else None  # noqa: PTH112 - a plain question
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=room) as folder:
        machine.begin(history.seed)
        loop = machine.Loop()
        asyncio.set_event_loop(loop)
        outcome = loop.run_until_complete(_history(history, Path(folder)))
        outcome.virtual_s, outcome.cpu_s = loop.time(), machine.cpu_s() - began_s
        outcome.digest, outcome.messages = net.digest, net.messages
        if net.log is not None:
            net.log.flush()
        with os.fdopen(os.dup(write), "wb") as pipe:
            pipe.write(json.dumps(asdict(outcome)).encode())
    sys.stdout.flush()


async def _history(history: History, folder: Path) -> Outcome:
    cluster = Cluster(folder, history.rps)
    invariants = Invariants(cluster)
    states: dict[str, None] = {}
    for name in SERVICES:
        cluster.start(name)

    async def until(limit_s: float) -> float:
        began_s, well_s = now_s(), 0.0
        while now_s() - began_s < limit_s:
            await asyncio.sleep(_LOOK_S)
            well_s = 0.0 if invariants.unsettled() else well_s + _LOOK_S
            if well_s >= 1.0:
                return now_s() - began_s
        invariants.broken.append(f"not settled within {limit_s:.0f} s: {invariants.unsettled()}")
        return limit_s

    async def watch() -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            invariants.look()
            states[invariants.state()] = None

    watching = asyncio.get_running_loop().create_task(watch())
    await until(_FIRST_S)
    outcome = Outcome()
    if not invariants.broken:
        invariants.broken.extend(invariants.energy())  # meters count from here
        cluster.load()
        await Faults(cluster).run(history)
        outcome.settled_s = await until(SETTLES_S)
        await _answered(cluster, invariants)
        await _quiet(cluster, invariants)
        longest_s = max(cluster.gap_s.values(), default=0.0)
        if history.most_gap_s and longest_s > history.most_gap_s:
            invariants.broken.append(f"a model had no answer for {longest_s:.1f} s")
    watching.cancel()
    if strayed := path.left(path.events):
        invariants.broken.append(strayed)
    outcome.broken, outcome.states = invariants.broken, list(states)
    outcome.heard, outcome.gap_s = dict(cluster.heard), dict(cluster.gap_s)
    return outcome


async def _answered(cluster: Cluster, invariants: Invariants) -> None:
    """Wait for an answer of every model: what is as planned serves."""
    began_s = now_s()
    while now_s() - began_s < _SERVES_S:
        await asyncio.sleep(_LOOK_S)
        if all(cluster.last_s.get(model, 0.0) > began_s for model in MODELS):
            return
    invariants.broken.append(f"a model has no answer for {_SERVES_S:.0f} s, though all is settled")


async def _quiet(cluster: Cluster, invariants: Invariants) -> None:
    """Wait for the answers to all requests, and compare meters with accounts."""
    sent, cluster.rps = cluster.sent, 1e-9
    await asyncio.sleep(6.0)
    for number in range(1, sent + 1):
        if not cluster.answers[number]:
            invariants.broken.append(f"request {number} was neither answered nor refused")
            break
    invariants.broken.extend(invariants.energy())
