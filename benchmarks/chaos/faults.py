"""Faults against services, one after the other, under Poisson load from a foreign client.

Each row of the table is one fault: three seconds after the load begins it is done to a service of a
running suite of two simulated nodes, either of which can carry the load alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import yaml

from benchmarks.chaos.books import End, row
from benchmarks.chaos.check import Checker
from benchmarks.chaos.proxy import Proxy
from benchmarks.chaos.suite import VARIANTS, deployment, labels, workers
from benchmarks.harness import Figures, Report
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from services.kit.config.loader import load
from services.kit.net import free_port
from services.kit.rpc import dial
from services.local.demo import model_family
from services.local.demo.digits import held_out
from services.local.up.health import until_answering
from services.local.up.process import Program
from services.local.up.suite import Suite, programs

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

RATE_RPS = 100.0
BEFORE_S, AFTER_S = 3.0, 9.0
"""Load before a fault, and from it on, s."""

PAUSE_S = 6.0
"""How long a process is stopped, or a connection is a black hole, s."""

SETTLE_S = 60.0


@dataclass
class Site:
    """A suite under faults.

    Attributes:
        suite: Its processes.
        folder: Its files.
        router: Where clients send to.
        proxies: In front of services, by name.
        images: What clients send.
    """

    suite: Suite
    folder: Path
    router: str
    proxies: Mapping[str, Proxy]
    images: Path

    async def pid(self, service: str) -> int:
        """Return a process: of "gpuagent" one whose node serves, of "planner" the leader."""
        if service == "worker":
            return random.choice(workers(self.folder)).pid
        if service == "planner":
            return int((await self.leader()).holder.rpartition(":")[2].partition("-")[0])
        if service == "gpuagent":
            async with self.planner() as stub:
                answer = await stub.GetPlan(planner_pb2.GetPlanRequest(), timeout=2)
            service = f"gpuagent-{answer.plan.segments[0].node}"
        return self.suite.processes[service]

    @asynccontextmanager
    async def planner(self) -> AsyncIterator[PlannerServiceAsyncStub]:
        """Dial the planner that leads while the block runs."""
        async with dial(load(self.folder / "cinquefoil.yaml").planner.dials) as channel:
            yield PlannerServiceStub(channel)

    async def leader(self) -> planner_pb2.Leader:
        """Return which planner leads."""
        async with self.planner() as stub:
            return (await stub.GetFleet(planner_pb2.GetFleetRequest(), timeout=2)).leader

    async def led_again_s(self, before: int) -> float:
        """Return how long it takes until a planner answers in a later term than `before`, s."""
        began_s = time.monotonic()
        async with asyncio.timeout(SETTLE_S), self.planner() as stub:
            while True:
                with suppress(grpc.aio.AioRpcError):
                    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest(), timeout=0.5)
                    if fleet.leader.term > before:
                        return time.monotonic() - began_s
                await asyncio.sleep(0.05)

    async def paused(self, service: str) -> None:
        """Stop a process for a while."""
        pid = await self.pid(service)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(PAUSE_S)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def cut_off(self, service: str) -> None:
        """Have nothing pass between a service and those that dial it, for a while."""
        async with self.proxies[service].black_hole():
            await asyncio.sleep(PAUSE_S)

    async def settled(self) -> None:
        """Wait until a plan is active, both nodes are there, and the router has all workers."""
        async with asyncio.timeout(SETTLE_S):
            while not await self._is_settled():  # noqa: ASYNC110 - several services are looked at
                await asyncio.sleep(0.2)

    async def _is_settled(self) -> bool:
        try:
            async with self.planner() as stub, dial(self.router) as router:
                plan = await stub.GetPlan(planner_pb2.GetPlanRequest(), timeout=2)
                fleet = await stub.GetFleet(planner_pb2.GetFleetRequest(), timeout=2)
                status = await RouterServiceStub(router).GetStatus(
                    router_pb2.GetStatusRequest(), timeout=2
                )
        except grpc.aio.AioRpcError:
            return False
        instances = [each for model in status.models for each in model.instances]
        return (
            plan.plan.state == plan_pb2.PLAN_STATE_ACTIVE
            and all(node.connected for node in fleet.nodes)
            and bool(instances)
            and all(each.connected for each in instances)
        )

    async def load(self, seconds: float) -> list[End]:
        """Send load; return the end of each request."""
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("client.py")), self.router),
            *(str(self.images), str(seconds), str(RATE_RPS)),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await client.communicate()
        if client.returncode:
            raise RuntimeError(f"the client ended with status {client.returncode}")
        return [End(*json.loads(line)) for line in output.splitlines()]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done, and to what. Attributes: do (does it, and returns when it is over)."""

    name: str
    service: str
    do: Callable[[Site], Awaitable[None]]


def _signalled(service: str, number: signal.Signals) -> Callable[[Site], Awaitable[None]]:
    async def do(site: Site) -> None:
        os.kill(await site.pid(service), number)

    return do


def _paused(service: str) -> Callable[[Site], Awaitable[None]]:
    return lambda site: site.paused(service)


def _cut_off(service: str) -> Callable[[Site], Awaitable[None]]:
    return lambda site: site.cut_off(service)


SERVICES = ("worker", "gpuagent", "planner", "carbon", "router")
PROXIED = ("planner", "carbon")
_ENDS_THE_LEAD = ("kill -9", "SIGTERM", "SIGSTOP, SIGCONT")
FAULTS = (
    *(Fault("kill -9", name, _signalled(name, signal.SIGKILL)) for name in SERVICES),
    *(Fault("SIGTERM", name, _signalled(name, signal.SIGTERM)) for name in SERVICES),
    *(Fault("SIGSTOP, SIGCONT", name, _paused(name)) for name in SERVICES),
    *(Fault("black hole", name, _cut_off(name)) for name in PROXIED),
)


def faults_table(folder: Path, wanted: Iterable[str]) -> Report:
    """Return the table of faults.

    Args:
        folder: For everything.
        wanted: Faults as "name/service"; none: all.
    """
    return asyncio.run(_table(folder, tuple(wanted)))


async def _table(folder: Path, wanted: tuple[str, ...]) -> Report:
    rows = []
    right = None
    async with site(folder) as (here, checker):
        right = labels(folder / "models")
        for fault in FAULTS:
            if wanted and f"{fault.name}/{fault.service}" not in wanted:
                continue
            await here.settled()
            rows.append(await measured(here, fault, right))
            print(json.dumps(rows[-1]), file=sys.stderr)  # a run takes minutes
        await here.settled()
        checked = await checker.found(folder)
    tables = [Figures("faults", rows), Figures("checked after all of them", [checked])]
    return Report(tables, {"benchmark": "chaos", "faults": rows, "checked": checked})


async def measured(here: Site, fault: Fault, right: Mapping[str, Any]) -> dict[str, Any]:
    """Do one fault under load; return its row.

    Args:
        here: A suite that has settled.
        fault: What to do.
        right: The right label of each image, by variant.
    """
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(here.load(BEFORE_S + AFTER_S), name="chaos.load")
        await asyncio.sleep(BEFORE_S + 1)  # a second for the client to start
        term, at_s = (await here.leader()).term, time.monotonic()
        leading = None
        if fault.service == "planner" and fault.name in _ENDS_THE_LEAD:
            leading = tasks.create_task(here.led_again_s(term), name="chaos.leader")
        await fault.do(here)
        ends = await loading
        led_again_s = 0.0 if leading is None else await leading
    return {**row(fault.name, fault.service, ends, dict(right), at_s), "led_again_s": led_again_s}


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[tuple[Site, Checker]]:
    """Run a suite, with a checker beside it, while the block runs."""
    model_family.train(folder / "models", lambda _: None, list(VARIANTS))
    config, router = folder / "cinquefoil.yaml", f"127.0.0.1:{free_port()}"
    data = two_nodes(folder, router)
    for name in PROXIED:
        data[name]["address"] = f"127.0.0.1:{free_port()}"
    proxied = {name: data[name]["address"] for name in PROXIED}
    second = f"127.0.0.1:{free_port()}"
    data["planner"] |= {"standby": True, "address": [proxied["planner"], second]}
    config.write_text(yaml.safe_dump(data))
    images = folder / "images.npy"
    np.save(images, held_out()[0])
    async with AsyncExitStack() as stack:
        proxies = {
            name: await stack.enter_async_context(
                Proxy.between(proxied[name], data[name]["listen"])
            )
            for name in PROXIED
        }
        members = [  # either planner may be the one that waits, and does not say SERVING
            replace(each, health="") if each.name == "planner" else each
            for each in (*programs(load(config), config), _standby(config, second))
        ]
        suite = await stack.enter_async_context(Suite(members, folder / "logs"))
        await asyncio.wait_for(until_answering(router), SETTLE_S)
        checker = await stack.enter_async_context(Checker.beside(load(config)))
        yield Site(suite, folder, router, proxies, images), checker


def _standby(config: Path, listen: str) -> Program:
    """Return a second planner on the same database."""
    command = (sys.executable, "-P", "-m", "services.cli", "planner", "serve", "--with-parent")
    argv = ("env", f"CINQUEFOIL_PLANNER__LISTEN={listen}", *command, "--config", str(config))
    return Program("planner-standby", argv)


def two_nodes(folder: Path, router: str) -> dict[str, Any]:
    """Return a deployment of two nodes, either of which can carry the load."""
    data = deployment(folder, router)
    first = data["nodes"]["node-0"]
    data["log_level"] = "info"
    data["nodes"]["node-1"] = {**first, "listen": f"127.0.0.1:{free_port()}"}
    data["models"]["digits"]["demand_rps"] = RATE_RPS * 1.5
    data["planner"]["triggers"] = {"min_interval_s": 1.0, "settle_s": 0.5, "plans_per_hour": 0}
    return data
