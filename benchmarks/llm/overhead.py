"""Cost of the way through router and worker to a stream of tokens: throughput, time, processor.

Two replicas that decode in steps of fixed length (`decoder.py`), each with all its slots busy.
Clients of the OpenAI API keep them so, in turns directly, each of the replica that has the
fewest of its requests, and through the router's HTTP edge. Steps take as long either way: what
the router costs are slots that are empty between two texts, and tokens that come late.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import psutil
from aiohttp import ClientSession, TCPConnector

from benchmarks.harness import Figures, Report
from benchmarks.llm.decoder import MODEL
from cinquefoil.planner.v1.planner_pb2 import PinRequest
from services.cli.client import connected
from services.cli.up.waiting import until_ready
from services.kit.config.loader import load
from services.kit.net import free_port
from services.local import derived
from services.local.up.suite import Suite

REPLICAS: Final = 2
SLOTS: Final = 16
"""Of each replica."""
STEP_S: Final = 0.02
TOKENS: Final = 128
"""Of each text."""
ROUNDS, QUICK_ROUNDS = 5, 1
ROUND_S: Final = 8.0
WARM_UP_S: Final = 2.0

_READY_S: Final = 60.0


@dataclass(slots=True)
class Seen:
    """Clients' record after the warm-up.

    Attributes:
        tokens: Number of tokens received.
        gaps_s: Between two tokens of a text.
        failed: Texts without an end.
    """

    tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    failed: int = 0


def measure(*, quick: bool) -> Report:
    """Measure both ways, in turns."""
    rows = asyncio.run(_measured(QUICK_ROUNDS if quick else ROUNDS))
    title = f"{REPLICAS} replicas of {SLOTS} slots, a step every {STEP_S * 1e3:g} ms"
    note = f"texts of {TOKENS} tokens; the most is {REPLICAS * SLOTS / STEP_S:g} tokens/s"
    return Report([Figures(title, rows, note)], {"overhead": rows})


async def _measured(rounds: int) -> list[dict[str, Any]]:
    with TemporaryDirectory(prefix="cinquefoil-llm-") as folder:
        file = derived.write(_deployment(Path(folder)), Path(folder))
        settings = load(file)
        async with (
            Suite.of(file, Path(folder) / "logs") as suite,
            connected(settings) as clients,
            ClientSession(connector=TCPConnector(limit=0)) as session,
        ):
            async with asyncio.timeout(_READY_S):
                await until_ready(clients, lambda _: None)
            await clients.planner.Pin(PinRequest())  # it sees half of the load only
            replicas = _replicas(suite)
            ways = {
                "least requests": (session, replicas),
                "router": (session, [settings.router.http_listen]),
            }
            found: dict[str, list[tuple[Seen, Mapping[str, float]]]] = {way: [] for way in ways}
            for turn in range(rounds):
                for way in sorted(ways, reverse=turn % 2 == 0):
                    found[way].append(await _round(*ways[way], lambda: _processor_s(suite)))
    rates = {way: [seen.tokens for seen, _ in each] for way, each in found.items()}
    base = rates["least requests"]
    return [
        {
            "policy": way,
            "tokens_per_s": float(np.median(rates[way])) / (ROUND_S - WARM_UP_S),
            "of_least_requests": float(np.median(np.divide(rates[way], base))),
            "tpot_p50_ms": float(np.percentile(gaps_s, 50)) * 1e3,
            "tpot_p99_ms": float(np.percentile(gaps_s, 99)) * 1e3,
            "failed": sum(seen.failed for seen, _ in each),
        }
        | {
            f"{name}_cpu_us_per_token": 1e6
            * sum(used[name] for _, used in each)
            / sum(seen.tokens for seen, _ in each)
            for name in ("router", "workers", "replicas")
        }
        for way, each in found.items()
        for gaps_s in [np.concatenate([seen.gaps_s for seen, _ in each])]
    ]


async def _round(
    session: ClientSession, servers: Sequence[str], processor_s: Callable[[], Mapping[str, float]]
) -> tuple[Seen, Mapping[str, float]]:
    """Keep all slots busy for a round; return what came, and what it took of the processor, s."""
    seen, busy = Seen(), dict.fromkeys(servers, 0)
    async with asyncio.TaskGroup() as tasks:
        began_s = time.monotonic() + WARM_UP_S
        works = [
            tasks.create_task(_client(session, busy, seen, began_s))
            for _ in range(REPLICAS * SLOTS)
        ]
        await asyncio.sleep(WARM_UP_S)
        before_s = processor_s()
        await asyncio.sleep(ROUND_S - WARM_UP_S)
        after_s = processor_s()
        for work in works:
            work.cancel()
    return seen, {name: after_s[name] - before_s[name] for name in before_s}


async def _client(session: ClientSession, busy: dict[str, int], seen: Seen, began_s: float) -> None:
    """Request one text after another, until cancelled."""
    while True:
        server = min(busy, key=lambda each: busy[each])
        busy[server] += 1
        try:
            await _text(session, server, seen, began_s)
        finally:
            busy[server] -= 1


async def _text(session: ClientSession, server: str, seen: Seen, began_s: float) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": TOKENS, "stream": True}
    last_s, ended = None, False
    async with session.post(f"http://{server}/v1/completions", json=body) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                ended = ended or line.startswith(b"data: [DONE]")
                continue
            if not any(choice["text"] for choice in json.loads(line[6:])["choices"]):
                continue
            now_s = time.monotonic()
            if now_s >= began_s:
                seen.tokens += 1
                if last_s is not None:
                    seen.gaps_s.append(now_s - last_s)
            last_s = now_s
    seen.failed += not ended


def _replicas(suite: Suite) -> list[str]:
    """Return where the replicas listen that the workers have started."""
    return [f"127.0.0.1:{each.cmdline()[2]}" for each in _below(suite, "decoder.py")]


def _below(suite: Suite, what: str) -> list[psutil.Process]:
    agent = next(pid for name, pid in suite.processes.items() if "gpuagent" in name)
    below = psutil.Process(agent).children(recursive=True)
    return [each for each in below if any(what in word for word in each.cmdline()[:4])]


def _processor_s(suite: Suite) -> dict[str, float]:
    """Return the processor's time of router, workers and replicas so far, s."""
    processes = {
        "router": [psutil.Process(suite.processes["router"])],
        "workers": _below(suite, "gpuagent.worker"),
        "replicas": _below(suite, "decoder.py"),
    }
    times = {name: [each.cpu_times() for each in found] for name, found in processes.items()}
    return {name: sum(each.user + each.system for each in found) for name, found in times.items()}


def _deployment(folder: Path) -> dict[str, Any]:
    """Return two GPUs with a replica each."""
    program = str(Path(__file__).with_name("decoder.py"))
    command = [sys.executable, program, "{port}", str(SLOTS), str(STEP_S)]
    source = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    node = {"zone": "US-CAL", "simulated": ["h100-80gb"] * REPLICAS}
    return {
        "version": "v1",
        "carbon": {**derived.anywhere(), "zones": {"US-CAL": {"source": source}}},
        "nodes": {"node-0": {**node, **derived.anywhere(), "state_dir": str(folder / "node")}},
        "models": {
            MODEL: {
                "slo": {"percentile": 99, "ttft_s": 2.0, "tpot_s": 0.1, "latency_s": 60},
                "demand_rps": REPLICAS * SLOTS / STEP_S / TOKENS / 4,
                "replicas_min": REPLICAS,
                "variants": {
                    "8b": {
                        "accuracy": 1,
                        "profile": {"kind": "language", "parameters_b": 8},
                        "runtime": {"kind": "openai", "command": command, "chat": False},
                    }
                },
            }
        },
        "planner": {
            **derived.anywhere(),
            "database": str(folder / "planner.sqlite3"),
            "batch_sizes": [SLOTS],
            "max_processes": 1,
        },
        "router": {**derived.anywhere(), "http_listen": f"127.0.0.1:{free_port()}"},
    }
