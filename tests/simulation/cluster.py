"""A cluster of the simulation: the services' own `run` on simulated machines.

Two planners on one database, agents of three nodes with two simulated A100 each, two routers, the
carbon service, and clients.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from inference.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from services.carbon import app as carbon_app
from services.gpuagent import agent as agent_parts
from services.gpuagent import app as agent_app
from services.gpuagent.devices import hardware
from services.gpuagent.devices.fake_nvml.library import FakeNvml
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.supervision.gpu_loss_watch import GpuLossWatch
from services.gpuagent.supervision.journal import TermJournal
from services.kit import config
from services.kit.clock import RealClock
from services.kit.config.carbon_sources import StaticSource
from services.kit.process import metrics
from services.kit.rpc import dial
from services.planner import app as planner_app
from services.planner import assembly
from services.planner.adapters.store import leadership
from services.router import app as router_app
from services.router.adapters.convert import to_report
from tests.simulation import workers
from tests.simulation.machine import Process, current, in_process, now_s, patch, rng
from tests.simulation.network import net

NODES: Final = tuple("abcdefgh"[: int(os.environ.get("SIMULATED_NODES", "3"))])
LIAR: Final = "liar"
PLANNERS: Final = ("p1", "p2")
ROUTERS: Final = ("r1", "r2")
SERVICES: Final = ("carbon", *PLANNERS, *NODES, *ROUTERS)
HOSTS: Final = {
    name: f"127.0.1.{number}"
    for number, name in enumerate((*SERVICES, LIAR, "client", "operator"), start=1)
}
MODELS: Final = {"m1": 1, "m2": 2}
"""Models with their fewest replicas."""

ANOTHERS: Final = "another's answer"
TIMEOUT_S: Final = 5.0
_ADVISED_S: Final = 2.0
"""Time until an operator has done what an error advises, s."""

TYPES: Final = ("a100-40gb",) * 2


class Cluster:
    """Services by name, and what clients heard.

    Attributes:
        folder: The disks of all machines.
        rps: Requests per second of each model.
        alive: The process of each service.
        stop: Set to end a service as SIGTERM does.
        crashes: Services that ended with an error.
        flipped: By agent, the file in which a bit was flipped last.
        sent: Requests sent.
        heard: Answers and refusals, by what they were.
        answers: Number of answers to each request.
        last_s, gap_s: By model, when a request was answered last, and the longest time without.
    """

    def __init__(self, folder: Path, rps: float) -> None:
        self.folder, self.rps = folder, rps
        self.alive: dict[str, Process] = {}
        self.stop: dict[str, asyncio.Event] = {}
        self.crashes: list[str] = []
        self.flipped: dict[str, Path] = {}
        self.sent = 0
        self.heard: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()
        self.last_s: dict[str, float] = {}
        self.gap_s: dict[str, float] = {}
        (folder / "model.onnx").touch()

    def deployment(self, name: str) -> config.Deployment:
        """Return the deployment as a service reads it."""
        folder = self.folder
        source = StaticSource(kind="static", intensity_gco2e_per_kwh=100)
        variants = {
            variant: config.Variant(
                file=folder / "model.onnx",
                accuracy=accuracy,
                profile=config.AnalyticProfile(kind="analytic", gmacs_per_item=gmacs),
            )
            for variant, accuracy, gmacs in (("small", 0.90, 2.0), ("large", 0.98, 15.0))
        }
        return config.Deployment(
            version="v1",
            log_level="error",
            rpc=config.Rpc(transport="grpcio"),
            carbon=config.Carbon(
                zones={"Z": config.Zone(source=source)}, listen=f"{HOSTS['carbon']}:1"
            ),
            nodes={
                each: config.Node(
                    listen=f"{HOSTS[each]}:20",
                    worker_host=HOSTS[each],
                    leave_timeout_s=8,
                    zone="Z",
                    simulated=TYPES,
                    state_dir=folder / each,
                )
                for each in NODES
            },
            join=config.Join(zone="Z", simulated=TYPES, state_dir=folder / LIAR),
            node=config.ThisNode(name=LIAR, address=f"{HOSTS[LIAR]}:20"),
            models={
                model: config.Model(
                    demand_rps=10.0 * replicas,
                    replicas_min=replicas,
                    slo=config.Slo(latency_s=0.4),
                    variants=variants,
                    spread="node",
                )
                for model, replicas in MODELS.items()
            },
            planner=config.Planner(
                listen=f"{HOSTS[name if name in PLANNERS else 'p1']}:10",
                address=tuple(f"{HOSTS[each]}:10" for each in PLANNERS),
                standby=True,
                database=folder / "planner.sqlite3",
                triggers=config.Triggers(min_interval_s=1.0, settle_s=0.3, plans_per_hour=0),
            ),
            router=config.Router(
                listen=f"{HOSTS[name if name in ROUTERS else 'r1']}:30", http_listen=""
            ),
        )

    def start(self, name: str) -> None:
        """Start a service, on its machine's disk as it is."""
        process = self.alive[name] = Process(name, HOSTS[name])
        process.on_death.append(lambda: net.died(process))
        net.find(HOSTS[name])
        net.note("start", name)
        for each in on_start:
            each(process)
        stop, deployment = asyncio.Event(), self.deployment(name)
        self.stop[name] = stop
        work: Any
        if name in PLANNERS:
            work = planner_app.run(deployment, stop)
        elif name in ROUTERS:
            work = router_app.run(deployment, stop)
        elif name == "carbon":
            work = carbon_app.run(deployment, stop, clock=RealClock())
        elif name == LIAR:
            work = agent_app.run(deployment, stop, join=True)
        else:
            work = agent_app.run(deployment, stop, node=name)
        process.spawn(work).add_done_callback(lambda task: self._ended(process, task))

    def _ended(self, process: Process, task: asyncio.Task[None]) -> None:
        if process.alive and not task.cancelled() and (error := task.exception()) is not None:
            file = self.flipped.get(process.name)
            if file is not None and f"{file} is damaged" in repr(error):
                file.unlink(missing_ok=True)  # as the error advises
                in_process(None, _ADVISED_S, self.start, process.name)
            else:
                self.crashes.append(f"{process.name} crashed: {error!r}"[:600])
        process.kill()

    def flip(self, name: str, number: int) -> None:
        """Flip a bit in a file of an agent's state, which does not run; GPUs keep theirs."""
        state = self.folder / name / name
        files = sorted(state.glob("*.json")) + sorted(state.glob("[ew]*/*.json"))
        if files:
            file = self.flipped[name] = files[number % len(files)]
            data = bytearray(file.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            file.write_bytes(data)
            net.note("flip", file.name)

    def lose(self, name: str) -> None:
        """End a machine with all that runs on it; no message says so."""
        net.lose(HOSTS[name])
        for process in (self.alive[name], *(each.process for each in workers.workers)):
            if process.machine == HOSTS[name]:
                process.kill()

    # ---- clients

    def load(self) -> None:
        """Begin to send requests."""
        process = Process("client", HOSTS["client"])
        for model in MODELS:
            process.spawn(self._client(model))

    async def _client(self, model: str) -> None:
        path = "/inference.GRPCInferenceService/ModelInfer"
        ways: list[Any] = [dial(f"{HOSTS[each]}:30").unary_unary(path) for each in ROUTERS]
        while True:
            await asyncio.sleep(rng.expovariate(self.rps))
            self.sent += 1
            request = ModelInferRequest(model_name=model, id=f"{self.sent}")
            current.get().spawn(self._infer(rng.choice(ways), request))

    async def _infer(self, way: Any, request: ModelInferRequest) -> None:
        model = request.model_name
        try:
            data = await way(request.SerializeToString(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.heard[error.code().name if error.details() else "refused without a reason"] += 1
        else:
            answer = ModelInferResponse.FromString(data)
            self.heard["OK" if answer.id == request.id else ANOTHERS] += 1
            self.gap_s[model] = round(
                max(self.gap_s.get(model, 0.0), now_s() - self.last_s.get(model, now_s())), 1
            )
            self.last_s[model] = now_s()
        self.answers[int(request.id)] += 1

    # ---- what its parts say

    def leaders(self) -> Iterator[Any]:
        """Yield the planners that may act now."""
        for name in PLANNERS:
            process = self.alive.get(name)
            planner = (
                process and process.alive and not process.held and process.facts.get("planner")
            )
            if planner and planner.leading._left_s() > 0:
                yield planner

    def agent(self, name: str) -> Any:
        """Return the parts of a node's agent; None: it does not run."""
        process = self.alive.get(name)
        return process.facts.get("agent") if process and process.alive else None


shown: dict[str, str] = {}
"""By node: the node whose GPUs its driver shows."""

terms: dict[str, list[int]] = {}
"""By node: terms of the steps that its agents admitted, in order."""

on_start: Final[list[Callable[[Process], object]]] = []
"""Called with each process of a service before it runs."""

periods: Final = {"meters_s": 2.0, "standby_s": 0.5, "gpus_s": 5.0}
"""Periods of the simulation, which are 0.5, 0.1 and 1 s in the product; no GPU is lost here."""


def _lied(report: Any) -> None:
    """Make a router's report false in one of the ways."""
    lie = rng.randrange(4)
    for load in report.models:
        if lie == 0:
            load.arrivals, load.queue_depth = 2**63, 2**31
            load.arrivals_per_s[:] = [2**32 - 1] * len(load.arrivals_per_s)
        elif lie == 1:
            load.latency_s["0.95"] = rng.choice((-1.0, math.inf, math.nan))
        elif lie == 2:
            load.answered_by_variant["no such variant"] = 2**40
    if lie == 3:
        registry = current.get().facts["router"].engine.registry
        found = {each.segment_id for m in registry.table.models for each in m.instances}
        report.unreachable_segments[:] = sorted(found)


def install() -> None:
    """Keep hold of what services make; endpoints of metrics are left out."""

    @asynccontextmanager
    async def exposed(*_: Any, **__: Any) -> AsyncIterator[int]:
        yield 0

    def kept(name: str, kind: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Any:
            one = current.get().facts[name] = kind(*args, **kwargs)
            return one

        return made

    def reported(*args: Any) -> Any:
        report = to_report(*args)
        if current.get().facts.get("lies"):
            _lied(report)
        return report

    patch(metrics, exposed=exposed)
    patch(
        router_app, to_report=reported, exposed=exposed, _Router=kept("router", router_app._Router)
    )
    patch(planner_app, Planner=kept("planner", assembly.Planner))
    patch(agent_app, Agent=kept("agent", agent_parts.Agent))
    admit = TermJournal.admit

    async def admitted(self: Any, term: int) -> None:
        await admit(self, term)
        terms.setdefault(current.get().name, []).append(term)

    patch(TermJournal, admit=admitted)

    def library(name: str, *args: Any, **more: Any) -> FakeNvml:
        return FakeNvml(shown.get(name, name), *args, **{**more, "clock": now_s})

    patch(hardware, FakeNvml=library)
    patch(NodeAccounts, PERIOD_S=periods["meters_s"])
    patch(GpuLossWatch, PERIOD_S=periods["gpus_s"])
    patch(leadership, _POLL_S=periods["standby_s"])
