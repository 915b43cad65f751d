"""Invariants over every fault: terms, plans, energy, executions, shares."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from benchmarks.chaos.books import End, out_of_time
from cinquefoil.gpuagent.v1 import gpuagent_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceStub
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from services.kit.config.loader import load
from services.kit.rpc import dial

if TYPE_CHECKING:
    from benchmarks.chaos.site import Site

_WITHIN: Final = 0.01
_BOOKED_S: Final = 1.0
"""Workers have booked what they executed within this time, s."""

_REPORTED_S: Final = 30.0
"""Agents have reported their energy within this time, s."""


@dataclass(frozen=True, slots=True)
class _Books:
    """Counters of the services so far.

    Attributes:
        account_j: By the planner, J.
        meters_j: By the agents, as last reported to the planner, J.
        executed: Requests that workers answered, by the same reports.
        since: Begin of the agents' accounts, by GPU.
        retried: Requests that the router sent again.
        interleaved: Steps of a lower term than one before.
    """

    account_j: float
    meters_j: float
    executed: int
    since: frozenset[tuple[str, int]]
    retried: int
    interleaved: int


class Checker:
    """A subscriber of the planner that writes down every plan which is announced."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._deployment = load(site.folder / "cinquefoil.yaml")
        self._announced: set[int] = set()
        self._before: _Books

    @classmethod
    @asynccontextmanager
    async def beside(cls, site: Site) -> AsyncIterator[Checker]:
        """Subscribe while the block runs."""
        checker = cls(site)
        following = asyncio.create_task(checker._follow(), name="chaos.checker")
        try:
            yield checker
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def begin(self) -> None:
        """Note what has been counted before a fault."""
        self._before = await self._books()

    async def found(self, ends: Sequence[End]) -> dict[str, Any]:
        """Return what holds since `begin`.

        Args:
            ends: Of the requests that were sent since.

        Returns:
            `announced_not_stored`, `terms_interleaved`: 0 is right. `executed`: requests that
            workers answered and booked. `retried`: those that the router sent again. `doubled`:
            executed beyond what clients had answered, beyond what ran out of time, which may have
            been executed, and beyond what they or the router sent again: 0 is right. `energy_j`:
            what the meters counted. `account_over_meters`: 1 is right. `share_error`: by how much
            the share of a segment in the router is another than the plan's: 0 is right. What comes
            from agents' accounts is None where one began again.
        """
        stored, before = await self._site.plans(), self._before
        now = await self._books()
        found = {
            "plans_announced": len(self._announced),
            "announced_not_stored": len(self._announced - stored),
            "terms_interleaved": now.interleaved - before.interleaved,
            "share_error": await self._share_error(),
        }
        of_agents = ("executed", "doubled", "energy_j", "account_over_meters")
        if now.since != before.since:
            return found | dict.fromkeys(of_agents)
        executed = now.executed - before.executed
        retried = max(0, now.retried - before.retried)  # a router that restarts counts from 0
        ended = sum(end.answered for end in ends) + len(out_of_time(ends))
        beyond = executed - ended - retried - sum(end.again for end in ends)
        spent_j = now.meters_j - before.meters_j
        over = (now.account_j - before.account_j) / spent_j
        return found | dict(zip(of_agents, (executed, max(0, beyond), spent_j, over), strict=True))

    async def _share_error(self) -> float:
        """Return the largest difference of a segment's share in the router from the plan's."""
        async with self._site.planner() as stub, dial(self._site.router) as channel:
            plan = (await stub.GetPlan(planner_pb2.GetPlanRequest())).plan
            status = await RouterServiceStub(channel).GetStatus(router_pb2.GetStatusRequest())
        planned = {each.spec.segment_id: each.share for each in plan.segments}
        routed: defaultdict[str, float] = defaultdict(float)
        for instance in (each for model in status.models for each in model.instances):
            routed[instance.segment_id] += instance.share
        return max(
            abs(planned.get(name, 0.0) - routed[name]) for name in planned.keys() | routed.keys()
        )

    async def _follow(self) -> None:
        while True:
            try:
                async with dial(self._deployment.planner.dials) as channel:
                    watch = PlannerServiceStub(channel).Watch(planner_pb2.WatchRequest())
                    async for said in watch:
                        if said.HasField("plan"):
                            self._announced.add(said.plan.version)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)

    async def _books(self) -> _Books:
        """Return what is counted, once the planner has heard all that agents have counted."""
        await asyncio.sleep(_BOOKED_S)
        async with asyncio.timeout(_REPORTED_S), self._site.planner() as stub:
            metered = await self._metered()
            while True:
                fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
                gpus = {gpu.gpu_uuid: gpu for node in fleet.nodes for gpu in node.energy}
                if all(gpus[uuid].total_j >= total_j for uuid, total_j in metered.items()):
                    break
                await asyncio.sleep(0.2)
        async with dial(self._site.router) as channel:
            status = await RouterServiceStub(channel).GetStatus(router_pb2.GetStatusRequest())
        logs = await asyncio.to_thread(lambda: list(self._site.folder.glob("logs/gpuagent-*.log")))
        return _Books(
            account_j=fleet.energy_j,
            meters_j=sum(gpu.total_j for gpu in gpus.values()),
            executed=sum(each.requests for gpu in gpus.values() for each in gpu.segments),
            since=frozenset((gpu.gpu_uuid, gpu.since.ToNanoseconds()) for gpu in gpus.values()),
            retried=sum(model.retried for model in status.models),
            interleaved=sum(map(interleaved, logs)),
        )

    async def _metered(self) -> dict[str, float]:
        """Return what the agents have metered by now, J, by GPU."""
        metered: dict[str, float] = {}
        for node in self._deployment.nodes.values():
            async with dial(node.dial) as channel:
                agent = GpuAgentServiceStub(channel)
                energy = await agent.GetEnergy(gpuagent_pb2.GetEnergyRequest())
            metered |= {gpu.gpu_uuid: gpu.total_j for gpu in energy.gpus}
        return metered


def interleaved(log: Path) -> int:
    """Return how often an agent carried out a step of a lower term than one before."""
    highest, count = 0, 0
    for line in log.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("event") == "planner's step" and (term := entry.get("term", 0)):
            count += term < highest
            highest = max(highest, term)
    return count


def wrong(row: Mapping[str, Any]) -> list[str]:
    """Return the columns of a row that should be 0, or 1 within 1 %, and are not.

    An account that began again (None) cannot be compared.
    """
    zeros = ("out_of_time", "lost", "wrong", "doubled", "announced_not_stored", "terms_interleaved")
    found = [name for name in zeros if row.get(name)]
    account, shares = row.get("account_over_meters"), row.get("share_error", 0.0)
    if account is not None and abs(account - 1) > _WITHIN:
        found.append("account_over_meters")
    if shares > _WITHIN:
        found.append("share_error")
    return found
