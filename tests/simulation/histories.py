"""Histories: faults at their times, drawn from a seed, changed from another history, or written."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import grpc
from google.protobuf.struct_pb2 import Value

from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.rpc import dial
from tests.simulation import cluster as parts
from tests.simulation.cluster import HOSTS, LIAR, NODES, PLANNERS, ROUTERS, SERVICES, Cluster
from tests.simulation.machine import Disk, Process, jumps, now_s
from tests.simulation.network import net
from tests.simulation.workers import workers

SLOW: Final = 100.0
_LASTS_S: Final = (0.5, 3.0, 8.0, 15.0, 25.0)
_ENDS_S: Final = 60.0
"""Longest time in which a service ends by itself after SIGTERM, s."""

_BURNS_S: Final = 10.0
"""Time after which a process dies whose callbacks were too few for its fuse, s."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault.

    Attributes:
        at_s: When, s after the cluster had settled.
        kind: A name of `KINDS`.
        name: What it befalls: a service, or its machine; "leader" and "busiest": the one that
            leads then, and the node with most segments.
        other: The other machine of a cut; a number of callbacks, of a worker, or of a file.
        lasts_s: After how long it is repaired, s.
    """

    at_s: float
    kind: str
    name: str
    other: str = ""
    lasts_s: float = 1.0


@dataclass(frozen=True, slots=True)
class History:
    """A seed, its faults, and when clients send how much.

    Attributes:
        seed: Draws delays, identities and requests.
        faults: In order of time.
        rps: Requests per second of each model.
        most_gap_s: Longest time in which a model may have no answer, s; 0: any.
    """

    seed: int
    faults: tuple[Fault, ...] = ()
    rps: float = 1.0
    most_gap_s: float = 0.0

    def shown(self) -> dict[str, Any]:
        """Return it as JSON may have it."""
        return asdict(self)

    @classmethod
    def of(cls, shown: dict[str, Any]) -> History:
        """Return what `shown` returned."""
        return cls(**{**shown, "faults": tuple(Fault(**each) for each in shown["faults"])})


def drawn(seed: int, length_s: float) -> History:
    """Draw a history."""
    draw, faults, at_s = random.Random(seed), [], 0.0
    while (at_s := at_s + draw.uniform(0.2, 6.0)) < length_s:
        faults.append(_fault(draw, at_s))
    return History(seed, tuple(faults), draw.choice((0.5, 1.0, 4.0)))


def _fault(draw: random.Random, at_s: float) -> Fault:
    kind = draw.choice(tuple(KINDS))
    name = draw.choice(SERVICES)
    most = {"fuse": 3000, "clock": 3000, "worker": 8, "lie": 8, "flip": 8}.get(kind)
    other = draw.choice(SERVICES) if most is None else str(draw.randrange(1, most))
    lasts_s = draw.choice(_LASTS_S) * draw.uniform(0.5, 1.0)
    return Fault(round(at_s, 3), kind, name, other, round(lasts_s, 3))


def changed(history: History, seed: int, length_s: float) -> History:
    """Return a history near another one: some faults dropped, moved, or added."""
    draw = random.Random(seed)
    faults = [each for each in history.faults if draw.random() > 0.15]
    for index, each in enumerate(faults):
        if draw.random() < 0.3:
            at_s = round(max(0.0, each.at_s + draw.gauss(0.0, 2.0)), 3)
            faults[index] = replace(each, at_s=at_s)
    faults += [_fault(draw, draw.uniform(0.0, length_s)) for _ in range(draw.randrange(3))]
    return History(draw.randrange(2**32), tuple(sorted(faults)), history.rps)


class Faults:
    """Does what a history says, and repairs it. Attributes: cluster, repairs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.repairs: list[asyncio.Task[None]] = []
        self._busy: set[str] = set()

    async def run(self, history: History) -> None:
        """Do all faults; return once the last one was repaired."""
        began_s = now_s()
        for each in history.faults:
            await asyncio.sleep(max(0.0, began_s + each.at_s - now_s()))
            fault = replace(each, name=self._named(each.name))
            net.note("fault", fault)
            KINDS[fault.kind](self, fault)
        await asyncio.gather(*self.repairs)

    def _named(self, name: str) -> str:
        """Return the service that a name stands for now."""
        planner = next(self.cluster.leaders(), None)
        if name == "leader":
            alive = self.cluster.alive
            return next((p for p in PLANNERS if alive[p].facts.get("planner") is planner), "p1")
        if name == "busiest":
            plan = None if planner is None else planner.publisher.board.value.plan
            segments = Counter(each.node for each in plan.segments) if plan else Counter(NODES)
            return max(NODES, key=lambda node: segments[node])
        return name

    # ---- of services

    def _free(self, name: str) -> Process | None:
        process = self.cluster.alive[name]
        whole = process.alive and process.held is None and name not in self._busy
        return process if whole else None

    def end(self, fault: Fault) -> None:
        """End a service in one of the ways, and start it again."""
        if (process := self._free(fault.name)) is None:
            return
        if fault.kind == "flip" and fault.name not in NODES:
            return
        self._busy.add(fault.name)
        if fault.kind in {"kill", "flip"}:
            process.kill()
        elif fault.kind == "fuse":
            process.fuse = int(fault.other)
        elif fault.kind == "lose":
            self.cluster.lose(fault.name)
        else:
            self.cluster.stop[fault.name].set()
        self._repair(self._again(fault, process))

    async def _again(self, fault: Fault, process: Process) -> None:
        ends_s = now_s() + (_ENDS_S if fault.kind == "term" else _BURNS_S)
        while process.alive and now_s() < ends_s:  # noqa: ASYNC110 - or the time is over
            await asyncio.sleep(0.1)
        if process.alive and fault.kind == "term":
            self.cluster.crashes.append(f"{fault.name} does not end within {_ENDS_S:.0f} s")
        process.kill()
        await asyncio.sleep(fault.lasts_s)
        if fault.kind == "flip":
            self.cluster.flip(fault.name, int(fault.other))
        self.cluster.start(fault.name)
        self._busy.discard(fault.name)

    def pause(self, fault: Fault) -> None:
        """Stop a service for a while."""
        if (process := self._free(fault.name)) is not None:
            process.pause()
            self._later(fault.lasts_s, process.go_on)

    def worker(self, fault: Fault) -> None:
        """Kill a worker."""
        alive = [each for each in workers if each.alive()]
        if alive:
            alive[int(fault.other) % len(alive)].process.kill()

    def lie(self, fault: Fault) -> None:
        """Make a router report a false load, or a worker answer falsely, for a while."""
        if fault.name in ROUTERS:
            facts = self.cluster.alive[fault.name].facts
            facts["lies"] = True
            self._later(fault.lasts_s, facts.pop, "lies", None)
            return
        alive = [each for each in workers if each.alive()]
        if alive:
            liar = alive[int(fault.other) % len(alive)]
            liar.lies = True
            self._later(fault.lasts_s, liar.end_lies)

    def clock(self, fault: Fault) -> None:
        """Set a machine's wall clock to another time, for a while."""
        host = HOSTS[fault.name]
        jumps[host] = int(fault.other) - 1500.0
        self._later(fault.lasts_s, jumps.pop, host, None)

    # ---- of the network and the disk

    def cut(self, fault: Fault) -> None:
        """Cut two machines off from each other; "half": in one direction only."""
        here, there = HOSTS[fault.name], HOSTS[fault.other]
        if here != there:
            net.part(here, there, both=fault.kind == "cut")
            self._later(fault.lasts_s, net.join, here, there)

    def slow(self, fault: Fault) -> None:
        """Delay what a machine sends and receives."""
        net.slow[HOSTS[fault.name]] = SLOW
        self._later(fault.lasts_s, net.slow.pop, HOSTS[fault.name], None)

    def late(self, fault: Fault) -> None:
        """Bring a node an order again of a planner that led before, as if it came only now."""
        net.replay(HOSTS[fault.name])

    def disk(self, fault: Fault) -> None:
        """Fill up the planners' disk."""
        Disk.fails = "database or disk is full"

        def room() -> None:
            Disk.fails = ""

        self._later(min(fault.lasts_s, 8.0), room)

    # ---- of people

    def liar(self, fault: Fault) -> None:
        """Start a node that joins with the GPUs of another, for a while."""
        if fault.name not in NODES or LIAR in self._busy:
            return
        self._busy.add(LIAR)
        parts.shown[LIAR] = fault.name
        self.cluster.start(LIAR)
        process = self.cluster.alive[LIAR]

        def end() -> None:
            process.kill()
            self._busy.discard(LIAR)

        self._later(fault.lasts_s, end)

    def order(self, fault: Fault) -> None:
        """Drain a node, change an objective or a setting; then undo it."""
        Process("operator", HOSTS["operator"]).spawn(self._ordered(fault))
        self._later(fault.lasts_s, lambda: None)
        undo = replace(fault, lasts_s=0.0)
        self._later(fault.lasts_s, self._undo, undo)

    def _undo(self, fault: Fault) -> None:
        operator = Process("operator", HOSTS["operator"])
        self._repair(operator.spawn(self._undone(fault)))

    async def _ordered(self, fault: Fault) -> None:
        if fault.name in NODES:
            await _send("CordonNode", pb.CordonNodeRequest(node=fault.name, drain=True))
        elif fault.name in PLANNERS:
            await _send("SetObjective", pb.SetObjectiveRequest(carbon_weight=0.9))
        else:
            values = {"models.m1.slo.latency_s": Value(number_value=0.5)}
            await _send("ChangeSettings", pb.ChangeSettingsRequest(values=values))

    async def _undone(self, fault: Fault) -> None:
        """Undo an order, as often as it takes."""
        while True:
            if fault.name in NODES:
                done = await _send("UncordonNode", pb.UncordonNodeRequest(node=fault.name))
            elif fault.name in PLANNERS:
                done = await _send("SetObjective", pb.SetObjectiveRequest(carbon_weight=0.5))
            else:
                reset = pb.ChangeSettingsRequest(reset=["models.m1.slo.latency_s"])
                done = await _send("ChangeSettings", reset)
            if done:
                return
            await asyncio.sleep(1.0)

    # ---- repairs

    def _later(self, after_s: float, do: Callable[..., Any], *args: Any) -> None:
        async def wait() -> None:
            await asyncio.sleep(after_s)
            do(*args)

        self._repair(wait())

    def _repair(self, work: Any) -> None:
        self.repairs.append(asyncio.get_running_loop().create_task(_of(work)))


async def _of(work: Awaitable[Any]) -> None:
    await work


async def _send(method: str, request: Any) -> bool:
    """Give an order to the planner that leads; return whether it was taken, or refused for good."""
    async with dial([f"{HOSTS[each]}:10" for each in PLANNERS]) as channel:
        try:
            await getattr(PlannerServiceStub(channel), method)(request, timeout=8.0)
        except grpc.aio.AioRpcError as error:
            return error.code() not in {
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.CANCELLED,
                grpc.StatusCode.ABORTED,
            }
    return True


KINDS: Final[dict[str, Callable[[Faults, Fault], None]]] = {
    "kill": Faults.end,
    "fuse": Faults.end,
    "term": Faults.end,
    "lose": Faults.end,
    "flip": Faults.end,
    "worker": Faults.worker,
    "lie": Faults.lie,
    "clock": Faults.clock,
    "late": Faults.late,
    "pause": Faults.pause,
    "cut": Faults.cut,
    "half": Faults.cut,
    "slow": Faults.slow,
    "disk": Faults.disk,
    "liar": Faults.liar,
    "order": Faults.order,
}

WRITTEN: Final[dict[str, History]] = {
    "quiet": History(15, (Fault(100.0, "clock", "carbon", "1500"),), 0.5),
    "machine-lost": History(1, (Fault(1.0, "lose", "busiest", lasts_s=40.0),), 4.0, 8.0),
    "leader-without-carbon": History(
        2,
        (Fault(1.0, "kill", "carbon", lasts_s=30.0), Fault(2.0, "kill", "leader", lasts_s=20.0)),
        4.0,
    ),
    "leader-stalled": History(11, (Fault(1.0, "pause", "leader", lasts_s=7.0),), 1.0),
    "leader-stopped": History(
        3, tuple(Fault(at_s, "pause", "leader", lasts_s=2.6) for at_s in (1.0, 8.0, 15.0)), 1.0
    ),
    "gpu-claim": History(
        4, (Fault(1.0, "kill", "a", lasts_s=6.0), Fault(1.0, "liar", "a", lasts_s=20.0)), 1.0
    ),
    "gpu-claim-new-leader": History(
        5,
        (
            Fault(1.0, "kill", "leader", lasts_s=20.0),
            Fault(1.0, "kill", "b", lasts_s=12.0),
            Fault(1.5, "liar", "b", lasts_s=20.0),
        ),
        1.0,
    ),
    "agent-and-worker-killed": History(
        6, (Fault(1.0, "worker", "a", "0"), Fault(4.0, "kill", "busiest", lasts_s=9.0)), 1.0
    ),
    "settings-with-join": History(7, (Fault(1.0, "order", "r1", lasts_s=10.0),), 1.0),
    "new-leader-plans": History(
        10,
        (Fault(1.0, "kill", "leader", lasts_s=5.0), Fault(10.0, "order", "busiest", lasts_s=6.0)),
        1.0,
    ),
    "late-order": History(
        12,
        (
            Fault(1.0, "kill", "leader", lasts_s=20.0),
            Fault(10.0, "order", "busiest", lasts_s=3.0),
            *(Fault(20.0, "late", node) for node in NODES),
        ),
        1.0,
    ),
    "late-order-after-restart": History(
        13,
        (
            Fault(1.0, "kill", "leader", lasts_s=20.0),
            Fault(10.0, "order", "busiest", lasts_s=3.0),
            *(Fault(18.0, "kill", node, lasts_s=1.0) for node in NODES),
            *(Fault(19.0 + n / 4, "late", node) for n in range(20) for node in NODES),
        ),
        1.0,
    ),
    "worker-lies": History(
        14, tuple(Fault(1.0, "lie", "a", str(n), lasts_s=15.0) for n in range(8)), 4.0
    ),
    "router-lies": History(17, (Fault(1.0, "lie", "r1", "0", 25.0),), 4.0),
    "bits-flipped": History(
        16,
        tuple(Fault(1.0 + 12 * n, "flip", node, str(n), 0.5) for n in range(6) for node in NODES),
        1.0,
    ),
    "drained": History(8, (Fault(1.0, "order", "b", lasts_s=8.0),), 4.0),
    "two-leave-in-turn": History(
        9, (Fault(1.0, "term", "a", lasts_s=6.0), Fault(8.0, "term", "b", lasts_s=6.0)), 1.0
    ),
    "last-leaves-before-another-is-back": History(
        15,
        (
            Fault(1.0, "lose", "b", lasts_s=25.0),
            Fault(14.0, "term", "a", lasts_s=7.0),
            Fault(18.0, "term", "c", lasts_s=9.0),
        ),
        4.0,
        most_gap_s=7.0,
    ),
}
"""Histories of known faults, by name."""
