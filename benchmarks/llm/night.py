"""Two live replicas over a night, sixty times as fast: one leaves, and is back before the morning.

The suite runs as processes: planner, agent, workers with `decoder.py` as their server on two
simulated H100, and a router to which texts come at random times, at the rate of the hour. Servers
take as long to start as they do on this machine, not a sixtieth of that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from aiohttp import ClientSession, TCPConnector

from benchmarks.harness import Figures, Report
from benchmarks.llm.decoder import MODEL
from cinquefoil.planner.v1.plan_pb2 import PLAN_STATE_ACTIVE
from cinquefoil.planner.v1.planner_pb2 import GetPlanRequest
from services.cli.client import Clients, connected
from services.cli.up.waiting import until_ready
from services.kit.config.loader import load
from services.kit.net import free_port
from services.local import derived
from services.local.up.suite import Suite

HOUR_S: Final = 60.0
FIRST_HOUR: Final = 1
RATES_RPS: Final = (80.0, 20.0, 20.0, 30.0, 80.0)
"""In the middle of each hour, in a straight line from one to the next."""
SLOTS: Final = 8
STEP_S: Final = 0.008
TOKENS: Final = 4
LATENCY_S: Final = 5.0
_READY_S: Final = 240.0


def measure(*, quick: bool) -> Report:
    """Run the suite through a night."""
    del quick  # a plan learns the load for as long, however short the night
    found = asyncio.run(_measured(RATES_RPS))
    title = f"Two replicas from {FIRST_HOUR}:00 on, an hour in {HOUR_S:g} s"
    return Report([Figures(title, found.pop("plans"), _said(found))], {"night": found})


def _said(found: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in found.items())


async def _measured(rates: tuple[float, ...]) -> dict[str, Any]:
    async with _suite() as (clients, url), ClientSession(connector=TCPConnector(limit=0)) as http:
        began_s = time.monotonic()
        plans: list[dict[str, Any]] = []
        watching = asyncio.create_task(_watch(clients, began_s, rates, plans))
        try:
            taken_s = await _texts(http, url, rates)
        finally:
            watching.cancel()
    answered_s = [each for each in taken_s if each is not None]
    return {
        "plans": plans,
        "texts": len(taken_s),
        "lost": len(taken_s) - len(answered_s),
        "in_time": sum(each <= LATENCY_S for each in answered_s) / len(taken_s),
        "latency_p99_s": float(np.percentile(answered_s, 99)),
    }


async def _watch(
    clients: Clients, began_s: float, rates: tuple[float, ...], plans: list[dict[str, Any]]
) -> None:
    """Note whenever another number of replicas serves."""
    while True:
        plan = (await clients.planner.GetPlan(GetPlanRequest(), timeout=60)).plan
        now_s = time.monotonic() - began_s
        replicas = len(plan.segments)
        serves = plan.state == PLAN_STATE_ACTIVE and replicas > 0
        if serves and (not plans or plans[-1]["replicas"] != replicas):
            minutes = round(60 * (FIRST_HOUR + now_s / HOUR_S)) % (24 * 60)
            plans.append({
                "at": f"{minutes // 60:02}:{minutes % 60:02}",
                "replicas": replicas,
                "rate_rps": _rate_rps(rates, now_s),
                "planned_rps": plan.inputs.demand_rps[MODEL],
            })  # fmt: skip
        await asyncio.sleep(1)


def _rate_rps(rates: tuple[float, ...], at_s: float) -> float:
    middles = (np.arange(len(rates)) + 0.5) * HOUR_S
    return float(np.interp(at_s, middles, rates))


async def _texts(http: ClientSession, url: str, rates: tuple[float, ...]) -> list[float | None]:
    """Send texts at random times; return how long each took, s, None: it was lost."""
    rng = np.random.default_rng(0)
    most_rps, end_s = max(rates), len(rates) * HOUR_S
    arrivals_s = np.cumsum(rng.exponential(1 / most_rps, round(2 * most_rps * end_s)))
    kept = [
        at_s
        for at_s in arrivals_s[arrivals_s < end_s].tolist()
        if rng.random() < _rate_rps(rates, at_s) / most_rps
    ]

    async def one(at_s: float) -> float | None:
        await asyncio.sleep(at_s)
        began_s = time.monotonic()
        body = {"model": MODEL, "prompt": "a", "max_tokens": TOKENS}
        async with http.post(url, json=body) as response:
            await response.read()
            return time.monotonic() - began_s if response.status == 200 else None

    return await asyncio.gather(*map(one, kept))


@asynccontextmanager
async def _suite() -> AsyncIterator[tuple[Clients, str]]:
    with TemporaryDirectory(prefix="cinquefoil-llm-") as folder:
        file = derived.write(_deployment(Path(folder)), Path(folder))
        settings = load(file)
        async with Suite.of(file, Path(folder) / "logs"), connected(settings) as clients:
            async with asyncio.timeout(_READY_S):
                await until_ready(clients, lambda _: None)
            yield clients, f"http://{settings.router.http_listen}/v1/completions"


def _deployment(folder: Path) -> dict[str, Any]:
    """Return two GPUs, which may be parked, and a model whose peak takes both."""
    program = str(Path(__file__).with_name("decoder.py"))
    command = [sys.executable, program, "{port}", str(SLOTS), str(STEP_S)]
    source = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    node = {"zone": "US-CAL", "simulated": ["h100-80gb"] * 2, "allow_mig_mode": False}
    profile = {"kind": "language", "parameters_b": 8, "prompt_tokens": 8, "answer_tokens": TOKENS}
    runtime = {"kind": "openai", "command": command, "chat": False}
    return {
        "version": "v1",
        "carbon": {**derived.anywhere(), "zones": {"US-CAL": {"source": source}}},
        "nodes": {"node-0": {**node, **derived.anywhere(), "state_dir": str(folder / "node")}},
        "models": {
            MODEL: {
                "slo": {"percentile": 99, "ttft_s": 2.0, "latency_s": LATENCY_S},
                "default_deadline_s": 60,
                "demand_rps": RATES_RPS[0],
                "demand_min_rps": 10.0,
                "variants": {"8b": {"accuracy": 1, "profile": profile, "runtime": runtime}},
            }
        },
        "planner": {
            **derived.anywhere(),
            "database": str(folder / "planner.sqlite3"),
            "batch_sizes": [SLOTS],
            "max_processes": 1,
            "objective": {"park_idle_gpus": True},
            "load_forecast": {"interval_s": HOUR_S / 4},
            "triggers": {"scale_down_s": HOUR_S / 2, "min_interval_s": 2, "plans_per_hour": 0},
        },
        "router": {**derived.anywhere(), "http_listen": f"127.0.0.1:{free_port()}"},
    }
