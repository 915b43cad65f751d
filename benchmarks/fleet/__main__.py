"""One planner with many nodes: what joining, steady state, a change and a restart cost.

    python -m benchmarks.fleet [--agents N ...] [--routers N] [--quick] [--json FILE]

A real planner with one that stands by, and a carbon service, each a process of its own; agents of
eight GPUs are light, some hundred in a process (`crowd.py`), and so are routers, in this process
(`peers.py`), each with its own connections. All agents join at once. Once the first plan is active,
each reports energy once a second; each router reports its load. Then the planner is killed. `base`
plans: what is measured is the way from reports to plans and routes, not a strategy
(`benchmarks.planner_scale`).

    planned_s      from the first agent's attempt to join until all have joined and a plan is active
    first_plan_s   from kill -9 until an operator has the next leader's plan and routes
    routers_back_s until every router has
    recovered_s    until every agent has joined again
    recovered_cpu_s  what the next leader used of the processor until then
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks._agent import beside
from benchmarks.fleet.crowd import Crowd, crowds
from benchmarks.fleet.peers import GPU_TYPE, MODEL, ZONE, Agent, Observer, Router
from benchmarks.harness import Figures, Report, options, publish
from services.kit.net import free_port
from services.kit.rpc import dial
from services.kit.telemetry import logs
from services.local.up.health import until_serving

FLEETS: Final = (10, 100, 1_000)
QUICK: Final = (10, 100)
ROUTERS: Final = 100
GPUS: Final = 8
STEADY_S: Final = 10.0
CHANGES: Final = 20
FIGURES: Final = (
    "join_s",
    "cpu_ms_per_join",
    "planned_s",
    "steady_cores",
    "fanout_p50_ms",
    "fanout_p99_ms",
    "bytes_per_update",
    "rss_mib",
    "routers_back_s",
    "first_plan_s",
    "recovered_s",
    "recovered_cpu_s",
)
_LIMIT_S: Final = 120.0
_MOST_S: Final = 220.0
"""Limit of the time that a fleet is measured, s."""


class Planner:
    """A planner's process, which may be killed.

    Attributes:
        listen: Address of the planner.
    """

    def __init__(self, config: Path, listen: str) -> None:
        self.listen = listen
        self._config = config
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; it serves, or stands by, soon."""
        self._process = await start("planner", self._config, CINQUEFOIL_PLANNER__LISTEN=self.listen)

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used, s."""
        times = self._seen().cpu_times()
        return float(times.user + times.system)

    @property
    def rss_mib(self) -> float:
        """Return its resident memory, MiB."""
        return float(self._seen().memory_info().rss / 2**20)

    async def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _seen(self) -> psutil.Process:
        assert self._process is not None  # started before it is measured
        return psutil.Process(self._process.pid)


async def start(service: str, config: Path, **settings: str) -> asyncio.subprocess.Process:
    """Start a service of a deployment, with settings in its environment."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "services.cli", service, "serve", "--with-parent"),
        env={**os.environ, "CINQUEFOIL_CONFIG": str(config), **settings},
    )


@asynccontextmanager
async def serving(
    folder: Path, agents: Sequence[Agent], **changed: Any
) -> AsyncIterator[list[Planner]]:
    """Run a carbon service and two planners of these nodes; yield the one that leads first.

    `changed` are sections of the deployment that are added, or that replace those there are.
    """
    config = folder / "cinquefoil.yaml"
    planners = [Planner(config, f"127.0.0.1:{free_port()}") for _ in range(2)]
    addresses = [planner.listen for planner in planners]
    given = deployment(folder, addresses, agents)
    planning = {**given["planner"], **changed.pop("planner", {})}
    config.write_text(yaml.safe_dump({**given, **changed, "planner": planning}))
    carbon = await start("carbon", config)
    try:
        for planner, wait in zip(planners, (until_serving, until_standing_by), strict=True):
            await planner.start()
            async with asyncio.timeout(_LIMIT_S):
                await wait(planner.listen)
        yield planners
    finally:
        for planner in planners:
            await planner.kill()
        carbon.kill()
        await carbon.wait()


async def until_standing_by(address: str) -> None:
    """Return when a planner answers health checks, whatever it says."""
    async with dial(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lag behind
        await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)


async def measured(count: int, routers: int) -> dict[str, Any]:
    """Measure a planner of `count` nodes; None: so far it did not come in `_MOST_S`."""
    found: dict[str, Any] = {"agents": count, "gpus": count * GPUS, "routers": routers}
    found |= dict.fromkeys(FIGURES)
    try:
        async with asyncio.timeout(_MOST_S):
            await _measure(count, routers, found)
    except* TimeoutError:
        _progress(f"{count} agents: not done in time")
    return found


async def _measure(count: int, routers: int, found: dict[str, Any]) -> None:
    """Measure a planner; what is known already stands in `found` where the rest takes too long."""
    agents = [Agent(f"node-{index}", index, GPUS) for index in range(count)]  # their names only
    watching = [Router(f"router-{index}") for index in range(routers)]
    observer = Observer()
    with TemporaryDirectory(prefix="bench-fleet-") as name:
        async with serving(Path(name), agents) as planners:
            planner, listen = planners[0], [each.listen for each in planners]
            works: list[Coroutine[Any, Any, Any]] = [each.run(listen) for each in watching]
            async with beside([*works, observer.run(listen)]):
                await all_answered(watching)
                _progress(f"{routers} routers are connected; {count} agents join")
                async with crowds(count, GPUS, listen) as crowd:
                    before_s, began_s = planner.cpu_s, time.monotonic()
                    for each in crowd:
                        each.join()
                    await observer.until_joined()
                    found["join_s"] = time.monotonic() - began_s
                    found["cpu_ms_per_join"] = (planner.cpu_s - before_s) / count * 1e3
                    await observer.until_active()
                    found["planned_s"] = time.monotonic() - began_s
                    _progress(f"all joined in {found['join_s']:.1f} s")
                    for each in crowd:
                        each.meter()
                    found["steady_cores"] = await steady_cores(planner)
                    found |= await fan_out(crowd, watching)
                    found["rss_mib"] = planner.rss_mib
                    observer.require_same_leader()
                    await taken_over(planners, observer, watching, found)


async def steady_cores(planner: Planner) -> float:
    """Return what the planner uses while nothing changes, cores."""
    _progress(f"steady state for {STEADY_S:.0f} s")
    await asyncio.sleep(5.0)  # the first report of each GPU is booked at once
    before_s, began_s = planner.cpu_s, time.monotonic()
    await asyncio.sleep(STEADY_S)
    return (planner.cpu_s - before_s) / (time.monotonic() - began_s)


async def fan_out(crowd: Sequence[Crowd], routers: Sequence[Router]) -> dict[str, float]:
    """Move a worker again and again; return delay and size of the news at routers."""
    _progress(f"{CHANGES} changed endpoints")
    draw = Random(1)
    delays_ms: list[float] = []
    messages = sum(each.messages for each in routers)
    received = sum(each.received_bytes for each in routers)
    while len(delays_ms) < CHANGES * len(routers):
        agents = draw.choice(crowd)
        if not (endpoint := await agents.chosen()):
            continue
        for router in routers:
            router.seek(endpoint)
        began_s = await agents.move()
        async with asyncio.timeout(_LIMIT_S):
            await asyncio.gather(*(router.found.wait() for router in routers))
        delays_ms += [(router.found_s - began_s) * 1e3 for router in routers]
        await asyncio.sleep(0.2)
    messages = sum(each.messages for each in routers) - messages
    received = sum(each.received_bytes for each in routers) - received
    cuts = quantiles(delays_ms, n=100)
    return {
        "fanout_p50_ms": cuts[49],
        "fanout_p99_ms": cuts[98],
        "bytes_per_update": received / messages,
    }


async def taken_over(
    planners: Sequence[Planner],
    observer: Observer,
    routers: Sequence[Router],
    found: dict[str, Any],
) -> None:
    """Kill the planner that leads; note when the next one serves, and when all are back."""
    planner, following = planners
    _progress("the planner is killed; the one that stands by leads")
    began_s, term, before_s = time.monotonic(), observer.term, following.cpu_s
    await planner.kill()
    for router in routers:
        router.answered.clear()

    async def timed(name: str, work: Coroutine[Any, Any, None]) -> None:
        await work
        found[name] = time.monotonic() - began_s

    async with asyncio.timeout(_LIMIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(timed("routers_back_s", all_answered(routers)))
        await timed("first_plan_s", observer.until_next(term))
        await timed("recovered_s", observer.until_joined())
        found["recovered_cpu_s"] = following.cpu_s - before_s


async def all_answered(routers: Sequence[Router]) -> None:
    """Return when every router has heard of the planner."""
    async with asyncio.timeout(_LIMIT_S):
        await asyncio.gather(*(each.answered.wait() for each in routers))


def deployment(folder: Path, planners: Sequence[str], agents: Sequence[Agent]) -> dict[str, Any]:
    """Return a deployment of the agents' nodes and one model, which fills half of the GPUs."""
    nodes = {
        each.name: {"zone": ZONE, "simulated": [GPU_TYPE] * each.gpus, "worker_host": each.host}
        for each in agents
    }
    profile = {"kind": "analytic", "gmacs_per_item": 9.9}
    return {
        "version": "v1",
        "log_level": "warning",
        "carbon": {
            "listen": f"127.0.0.1:{free_port()}",
            "zones": {ZONE: {"source": {"kind": "static", "intensity_gco2e_per_kwh": 200}}},
        },
        "planner": {
            "address": list(planners),
            "standby": True,
            "database": str(folder / "planner.sqlite3"),
            "strategy": "base",
            "triggers": {"settle_s": _LIMIT_S},  # one plan, once all have joined
        },
        "nodes": nodes,
        "models": {
            MODEL: {
                "slo": {"percentile": 95, "latency_s": 0.15},
                "demand_rps": 100.0 * len(agents),
                "variants": {"b5": {"file": "b5.onnx", "accuracy": 83.776, "profile": profile}},
            }
        },
    }


def _progress(text: str) -> None:
    """Say on stderr what is measured now: a large fleet takes minutes."""
    sys.stderr.write(f"fleet: {text}\n")


def main() -> None:
    """Run it."""
    parser = options("fleet")
    parser.add_argument("--agents", type=int, nargs="+", metavar="N", help="sizes of fleets")
    parser.add_argument("--routers", type=int, default=ROUTERS, help=f"default: {ROUTERS}")
    parser.add_argument("--quick", action="store_true", help=f"fleets of {QUICK} agents only")
    arguments = parser.parse_args()
    logs.configure("fleet", level="error")  # a thousand peers say that the planner is away
    sizes = arguments.agents or (QUICK if arguments.quick else FLEETS)
    rows = [asyncio.run(measured(count, min(arguments.routers, max(10, count)))) for count in sizes]
    note = "agents and routers run on the same machine's cores as the planner"
    publish("fleet", Report([Figures("fleets", rows, note)], {"fleets": rows}), arguments)


if __name__ == "__main__":
    main()
