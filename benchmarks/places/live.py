"""Three suites on one machine: join, residency, two grids, one region cut off, one drained.

Mutual TLS; between the regions lie relays that delay each direction by 10 ms. Clients of the region
with the dirtiest grid send requests all the time, an open loop at random times. Networks compute
real answers on the processor; GPUs are simulated at NVML.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import yaml

from benchmarks._link import Link, linked
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.regions.v1 import regions_pb2 as pb
from inference import grpc_service_pb2 as oip
from services.cli.client import Clients, connected
from services.cli.load.open_loop import send_each
from services.cli.load.requests import Requests, requests_for
from services.cli.tensors import parameters_of
from services.cli.up.waiting import until_ready
from services.kit.clock import RealClock
from services.kit.config.loader import load
from services.kit.errors import ServiceError
from services.kit.hardware import gpu_types
from services.kit.net import free_port
from services.local.demo import model_family
from services.local.pki import TRUST_DOMAIN, Authority, identities, settings
from services.local.up.suite import Suite

GRIDS: Final = {"home": 600.0, "north": 30.0, "south": 200.0}
"""Carbon intensities, gCO2e/kWh: most requests of home go north."""

GMACS: Final = 20.0
"""Of a request: a region has room for a few times the load, not for hundreds."""

ONE_WAY_S: Final = 0.01
RATE_RPS: Final = 20.0
OBJECTIVE_S: Final = 0.4
CUT_S, EVENT_S = 20.0, 45.0
GPU: Final = "t4"
MODEL_FILE: Final = "linear.onnx"
_TIMEOUT_S: Final = 10.0
_PATIENCE_S: Final = 300.0
_REPORTED_S: Final = 5.0
"""Time within which routers and agents have reported all."""

_SETTLED: Final = 40
"""Answers in a row without one of a region: it takes none."""


@dataclass(slots=True)
class Region:
    """A region's suite. Attributes: name, folder, links (relays to or from it)."""

    name: str
    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)

    @property
    def file(self) -> Path:
        """Its deployment file."""
        return self.folder / "cinquefoil.yaml"

    def address(self, service: str) -> str:
        """Return where a service of it listens."""
        return f"127.0.0.1:{self.ports.setdefault(service, free_port())}"

    def change(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change its deployment file."""
        document = yaml.safe_load(self.file.read_text())
        change(document)
        self.file.write_text(yaml.safe_dump(document, sort_keys=False))


@dataclass(frozen=True, slots=True)
class Answer:
    """Fate of a request. Attributes: sent_s, ended_s (monotonic), region, lost (why; "": not)."""

    sent_s: float
    ended_s: float
    region: str = ""
    lost: str = ""

    @property
    def in_time(self) -> bool:
        """True: it was answered within the objective."""
        return not self.lost and self.ended_s - self.sent_s <= OBJECTIVE_S


@dataclass(slots=True)
class Load:
    """Requests of home's clients, as long as it runs. Attributes: answers in order of their end."""

    clients: Clients
    requests: Requests
    answers: list[Answer] = field(default_factory=list)

    async def run(self) -> None:
        """Send for ever."""
        await send_each(self._due_s(), self._send, RealClock())

    @staticmethod
    def _due_s() -> Iterator[float]:
        at_s, rng = 0.0, np.random.default_rng(0)
        while True:
            at_s += rng.exponential(1 / RATE_RPS)
            yield at_s

    async def _send(self, number: int, planned_s: float) -> None:
        message = self.requests.messages[number % len(self.requests.messages)]
        region, lost = "", ""
        try:
            answer: oip.ModelInferResponse = await self.clients.inference.ModelInfer(
                message, timeout=_TIMEOUT_S
            )
            region = parameters_of(answer).get("region", "home")
        except ServiceError as error:
            lost = f"{error.status}: {error.message}"
        self.answers.append(Answer(planned_s, RealClock().monotonic(), region, lost))

    def since(self, since_s: float) -> list[Answer]:
        """Return the answers of requests sent since then."""
        return [each for each in self.answers if each.sent_s >= since_s]

    async def until(self, why: str, met: Callable[[list[Answer]], bool]) -> float:
        """Wait for a condition of what is sent from now on; return how long it took, s."""
        began_s = RealClock().monotonic()
        await until(why, lambda: met(self.since(began_s)))
        return RealClock().monotonic() - began_s

    async def comes_from(self, region: str) -> float:
        """Wait until most answers are a region's; return how long the first took, s."""
        began_s = RealClock().monotonic()
        await self.until(f"answers of {region}", lambda found: _mostly(found, region))
        return next(e.ended_s for e in self.since(began_s) if e.region == region) - began_s

    async def leaves(self, region: str) -> float:
        """Wait until no answer is a region's any more; return when the last one came, s."""
        began_s = RealClock().monotonic()
        await self.until(f"no answer of {region}", lambda found: _without(found, region))
        last = [each.ended_s for each in self.since(began_s) if each.region == region]
        return max(last, default=began_s) - began_s


def _mostly(found: list[Answer], region: str) -> bool:
    last = found[-_SETTLED:]
    return len(last) == _SETTLED and sum(each.region == region for each in last) > _SETTLED / 2


def _without(found: list[Answer], region: str) -> bool:
    last = found[-_SETTLED:]
    return len(last) == _SETTLED and all(each.region != region for each in last)


async def until(why: str, met: Callable[[], bool], patience_s: float = _PATIENCE_S) -> None:
    """Wait for a condition.

    Raises:
        RuntimeError: It is not met in time.
    """
    began_s = time.monotonic()
    while not met():
        if time.monotonic() - began_s > patience_s:
            raise RuntimeError(f"{why}: not within {patience_s:g} s")
        await asyncio.sleep(0.1)


# ---- the three suites --------------------------------------------------------------------------


def _document(
    region: Region, peers: Mapping[str, Mapping[str, str]], model: Path
) -> dict[str, Any]:
    """Return a region's deployment: one GPU, one model, nothing beyond its site's feed."""
    profile = {"kind": "analytic", "gmacs_per_item": GMACS}
    source = {"kind": "static", "intensity_gco2e_per_kwh": GRIDS[region.name]}
    return {
        "version": "v1",
        "carbon": {"zones": {"grid": {"source": source}}, "listen": region.address("carbon")},
        "nodes": {
            "node-0": {
                "zone": "grid",
                "simulated": [GPU],
                "listen": region.address("agent"),
                "state_dir": str(region.folder / "state"),
            }
        },
        "sites": {"hall": {"nodes": ["node-0"]}},
        "regions": {"name": region.name, "peers": dict(peers), "exchange_s": 1.0},
        "models": {
            "digits": {
                "slo": {"percentile": 95, "latency_s": OBJECTIVE_S},
                "demand_rps": RATE_RPS,
                "regions": ["*"],
                "variants": {"linear": {"file": str(model), "accuracy": 0.97, "profile": profile}},
            }
        },
        "planner": {
            "listen": region.address("planner"),
            "database": str(region.folder / "planner.sqlite3"),
        },
        "router": {"listen": region.address("router")},
    }


async def _join_up(stack: AsyncExitStack, regions: Mapping[str, Region], root: Path) -> None:
    """Write the regions' files, with a relay for each of a pair's services and directions."""
    authority = Authority.made(root / "pki", TRUST_DOMAIN)
    for region in regions.values():
        peers: dict[str, dict[str, str]] = {}
        for peer in regions.values():
            if peer is region:
                continue
            for service in ("planner", "router"):
                link = await stack.enter_async_context(linked(peer.address(service), ONE_WAY_S))
                peers.setdefault(peer.name, {})[service] = link.address
                region.links.append(link)
                peer.links.append(link)
        region.folder.mkdir()
        document = _document(region, peers, root / MODEL_FILE)
        secured = yaml.safe_load(settings(root / "pki", TRUST_DOMAIN))
        region.file.write_text(yaml.safe_dump({**document, **secured}, sort_keys=False))
        for identity in identities(load(region.file)):
            authority.issue(identity, 1)


@asynccontextmanager
async def _served(region: Region) -> AsyncIterator[tuple[Suite, Clients]]:
    """Run a region's suite; yield it and its clients once every model is served."""
    async with (
        Suite.of(region.file, region.folder / "logs") as suite,
        connected(load(region.file)) as clients,
    ):
        async with asyncio.timeout(_PATIENCE_S):
            await until_ready(clients, lambda _: None)
        yield suite, clients


# ---- what is done to them ----------------------------------------------------------------------


@dataclass(slots=True)
class Trial:
    """Three suites under load. Attributes: worst_load (of any region, of its capacity)."""

    regions: Mapping[str, Region]
    suites: dict[str, Suite]
    clients: dict[str, Clients]
    load: Load
    worst_load: float = 0.0

    async def listed(self, region: str) -> dict[str, pb.Region]:
        """Return a region's view of all, by name."""
        found = await self.clients[region].regions.ListRegions(pb.ListRegionsRequest())
        return {each.name: each for each in found.regions}

    async def watch(self) -> None:
        """Note the most work of any region, for ever."""
        while True:
            for name in tuple(self.clients):
                try:
                    found = await self.listed(name)
                except ServiceError:
                    continue
                for flow in found[name].flows:
                    peers = [f for p in found.values() if p.name != name for f in p.flows]
                    work_rps = flow.sent_rps + sum(f.received_rps - f.sent_rps for f in peers)
                    if flow.granted_rps:
                        self.worst_load = max(self.worst_load, work_rps / flow.granted_rps)
            await asyncio.sleep(0.5)

    async def restart(self, region: str, service: str) -> None:
        """Kill a service, so that its suite starts it with the file as it is now."""
        process = self.suites[region].processes[service]
        os.kill(process, signal.SIGKILL)
        await until(
            f"{service} of {region}",
            lambda: self.suites[region].processes.get(service, process) != process,
        )

    async def set_grid(self, region: str, intensity_gco2e_per_kwh: float) -> None:
        """Give a region's zone another intensity."""

        def change(document: dict[str, Any]) -> None:
            source = document["carbon"]["zones"]["grid"]["source"]
            source["intensity_gco2e_per_kwh"] = intensity_gco2e_per_kwh

        self.regions[region].change(change)
        await self.restart(region, "carbon")

    async def set_residency(self, patterns: list[str]) -> None:
        """Set where home's data may be."""

        def change(document: dict[str, Any]) -> None:
            document["models"]["digits"]["regions"] = patterns

        self.regions["home"].change(change)
        await self.restart("home", "planner")

    # Each case returns for how long requests were not answered as they should be, s, and a note.

    async def residency(self) -> tuple[float, str]:
        """Keep home's data in the south, then permit all regions."""
        await self.set_residency(["south"])
        left_s = await self.load.leaves("north")
        began_s = RealClock().monotonic()
        await self.load.comes_from("south")
        broken = sum(each.region == "north" for each in self.load.since(began_s))
        await self.set_residency(["*"])
        back_s = await self.load.comes_from("north")
        return left_s, f"{broken} answers of the north meanwhile; allowed again: {back_s:.1f} s"

    async def grids(self) -> tuple[float, str]:
        """Make the north dirtier than the south, and clean again."""
        await self.set_grid("north", 400.0)
        left_s = await self.load.leaves("north")
        south_s = await self.load.comes_from("south")
        await self.set_grid("north", GRIDS["north"])
        back_s = await self.load.comes_from("north")
        return left_s, f"the south takes it {south_s:.1f} s later; clean again: {back_s:.1f} s"

    async def cut(self) -> tuple[float, str]:
        """Cut the north off without breaking a connection, and bring it back."""
        began_s = RealClock().monotonic()
        for link in self.regions["north"].links:
            link.freeze()
        await asyncio.sleep(CUT_S)
        for link in self.regions["north"].links:
            link.thaw()
        late = [e for e in self.load.since(began_s - _TIMEOUT_S) if e.ended_s >= began_s]
        late_s = max((e.ended_s - began_s for e in late if not e.in_time), default=0.0)
        back_s = await self.load.comes_from("north")
        return late_s, f"the first answer of the north {back_s:.1f} s after the cable is whole"

    async def event(self) -> tuple[float, str]:
        """Limit the north's site to the power of its idle GPU."""
        order = planner_pb2.SetGridEventRequest()
        order.event.site, order.event.limit_w = "hall", gpu_types.load(GPU).idle_power_w
        order.event.end.FromSeconds(int(time.time() + EVENT_S))
        await self.clients["north"].planner.SetGridEvent(order)
        left_s = await self.load.leaves("north")
        south_s = await self.load.comes_from("south")
        back_s = await self.load.comes_from("north")
        return left_s, f"the south takes it {south_s:.1f} s later; after the event: {back_s:.1f} s"

    async def drain(self) -> tuple[float, str]:
        """Drain the north by an operator's order, and resume."""
        await self.clients["north"].regions.DrainRegion(pb.DrainRegionRequest())
        left_s = await self.load.leaves("north")
        await self.clients["north"].regions.DrainRegion(pb.DrainRegionRequest(resume=True))
        back_s = await self.load.comes_from("north")
        return left_s, f"resumed: {back_s:.1f} s"

    async def account(self) -> dict[str, Any]:
        """Return what the north emitted by region of the client, and by model, gCO2e."""
        await asyncio.sleep(_REPORTED_S)
        found: dict[str, defaultdict[str, float]] = {}
        for name, by in (
            ("by_model", planner_pb2.ACCOUNT_GROUPING_MODEL),
            ("by_region", planner_pb2.ACCOUNT_GROUPING_REGION),
        ):
            request = planner_pb2.ReadAccountRequest(by=by)
            found[name] = defaultdict(float)
            async for response in self.clients["north"].planner.ReadAccount(request):
                for each in response.entries:
                    found[name][each.model or each.origin or "idle"] += each.carbon_gco2e
        return {name: dict(sums) for name, sums in found.items()}

    async def row(
        self, case: str, do: Callable[[], Awaitable[tuple[float, str]]]
    ) -> dict[str, Any]:
        """Run a case, and return what became of the requests sent meanwhile."""
        self.worst_load, began_s = 0.0, RealClock().monotonic()
        recovered_s, note = await do()
        ended_s = RealClock().monotonic()
        await asyncio.sleep(OBJECTIVE_S)
        found = [each for each in self.load.since(began_s) if each.sent_s <= ended_s]
        latency_s = [each.ended_s - each.sent_s for each in found if not each.lost]
        return {
            "case": case,
            "sent": len(found),
            "lost": sum(bool(each.lost) for each in found),
            "in_time_%": 100 * sum(each.in_time for each in found) / len(found),
            "p50_ms": 1e3 * float(np.percentile(latency_s, 50)),
            "p99_ms": 1e3 * float(np.percentile(latency_s, 99)),
            "worst_load": self.worst_load,
            "recovered_s": recovered_s,
            "load_average": os.getloadavg()[0],
            "note": note,
            "late": dict(Counter(e.region for e in found if not e.lost and not e.in_time)),
            "losses": sorted({each.lost for each in found if each.lost}),
        }


async def run(cases: tuple[str, ...]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Start the suites; return a row for each case, and the cleanest region's account."""
    with TemporaryDirectory(prefix="cinquefoil-places-") as place:
        root = Path(place)
        (root / MODEL_FILE).write_bytes(model_family.build("linear"))
        regions = {name: Region(name, root / name) for name in GRIDS}
        async with AsyncExitStack() as stack:
            await _join_up(stack, regions, root)
            suites, clients = {}, {}
            for name in ("home", "south"):
                suites[name], clients[name] = await stack.enter_async_context(
                    _served(regions[name])
                )
            described = await clients["home"].inference.ModelMetadata(
                oip.ModelMetadataRequest(name="digits")
            )
            load_ = Load(clients["home"], requests_for(described, None))
            trial = Trial(regions, suites, clients, load_)
            async with asyncio.TaskGroup() as tasks:
                chores = [tasks.create_task(load_.run()), tasks.create_task(trial.watch())]
                rows = [await trial.row("a region joins", lambda: _joined(trial, stack))]
                rows += [await trial.row(case, getattr(trial, case)) for case in cases]
                for each in chores:
                    each.cancel()
            account = await trial.account()
    return rows, account


async def _joined(trial: Trial, stack: AsyncExitStack) -> tuple[float, str]:
    """Wait for the south's share, start the north, and wait for its share."""
    south_s = await trial.load.comes_from("south")
    began_s = RealClock().monotonic()
    trial.suites["north"], trial.clients["north"] = await stack.enter_async_context(
        _served(trial.regions["north"])
    )
    served_s = RealClock().monotonic() - began_s
    taken_s = await trial.load.comes_from("north")
    return (
        taken_s,
        f"the south's first answer after {south_s:.1f} s; the north started in {served_s:.1f} s",
    )
