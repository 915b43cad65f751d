"""What must hold over every fault: terms, plans, energy."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import grpc

from cinquefoil.gpuagent.v1 import gpuagent_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceStub
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.config import Deployment
from services.kit.rpc import dial


class Checker:
    """A subscriber of the planner that writes down every plan which is announced."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._announced: set[int] = set()
        self._account_j = self._meters_j = 0.0

    @classmethod
    @asynccontextmanager
    async def beside(cls, deployment: Deployment) -> AsyncIterator[Checker]:
        """Subscribe while the block runs."""
        checker = cls(deployment)
        checker._account_j, checker._meters_j = await checker._energy_j()
        following = asyncio.create_task(checker._follow(), name="chaos.checker")
        try:
            yield checker
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def found(self, folder: Path) -> dict[str, Any]:
        """Return what holds; 0 in all but the first and last is right.

        Args:
            folder: The suite's.
        """
        with closing(sqlite3.connect(folder / "planner.sqlite3")) as database:
            stored = {version for (version,) in database.execute("SELECT version FROM plans")}
        agents = await asyncio.to_thread(lambda: list(folder.glob("logs/gpuagent-*.log")))
        account_j, meters_j = await self._energy_j()
        spent_j = meters_j - self._meters_j
        return {
            "plans_announced": len(self._announced),
            "announced_not_stored": len(self._announced - stored),
            "terms_interleaved": sum(map(interleaved, agents)),
            "energy_j": spent_j,
            "account_over_meters": (account_j - self._account_j) / spent_j,
        }

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

    async def _energy_j(self) -> tuple[float, float]:
        """Return what the planner has accounted for, and what the agents have metered, J."""
        async with dial(self._deployment.planner.dials) as channel:
            fleet = await PlannerServiceStub(channel).GetFleet(planner_pb2.GetFleetRequest())
        meters_j = 0.0
        for node in self._deployment.nodes.values():
            async with dial(node.dial) as channel:
                stub = GpuAgentServiceStub(channel)
                energy = await stub.GetEnergy(gpuagent_pb2.GetEnergyRequest())
                meters_j += sum(gpu.total_j for gpu in energy.gpus)
        return fleet.energy_j, meters_j


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
