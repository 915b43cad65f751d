"""The batch service as a process: lines per second, memory, and results after kills.

Workers answer at once: a stand-in for the router and its workers. What the service itself costs
is its processor time per line, which does not depend on what else the machine does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import aiohttp
import yaml

from services.kit.net import free_port

ENDPOINT: Final = "/v2/models/digits/infer"
_HOST: Final = "127.0.0.1"
_CHUNK_LINES: Final = 10_000
_LOOK_S: Final = 0.2
_GONE: Final = (aiohttp.ClientError, OSError, TimeoutError)


class Outcome(NamedTuple):
    """Figures of a file of lines that was answered.

    Attributes:
        lines: In the file.
        kills: Of the batch service, by SIGKILL.
        lost, doubled: Lines without a result, and with more than one or with another's.
        lines_per_s: From the batch's beginning to its end.
        cpu_us_per_line: Processor time of the batch service; with kills also of its starts.
        rss_mib: The most memory that it had.
    """

    lines: int
    kills: int
    lost: int
    doubled: int
    lines_per_s: float
    cpu_us_per_line: float
    rss_mib: float


def measured(lines: int, kills: int, seed: int = 1) -> Outcome:
    """Return the figures of a file whose batch service is killed at random times."""
    with TemporaryDirectory(prefix="waiting-") as folder:
        return asyncio.run(_Run(Path(folder), lines, kills, random.Random(seed)).run())


class _Run:
    """One file, from its submission to its results."""

    def __init__(self, folder: Path, lines: int, kills: int, rng: random.Random) -> None:
        self._folder, self._lines, self._kills, self._rng = folder, lines, kills, rng
        self._url = f"http://{_HOST}:{free_port()}/v1"
        self._router_port = free_port()
        self._cpu_s, self._rss_mib = 0.0, 0.0
        self._config = folder / "cinquefoil.yaml"
        self._config.write_text(yaml.safe_dump(self._document()))

    def _document(self) -> dict[str, Any]:
        profile = {"kind": "analytic", "gmacs_per_item": 1.0}
        static = {"source": {"kind": "static", "intensity_gco2e_per_kwh": 400.0}}
        variant = {"file": "v.onnx", "accuracy": 0.9, "profile": profile}
        batch = {
            "listen": f"{_HOST}:{free_port()}",
            "http_listen": self._url.removeprefix("http://").removesuffix("/v1"),
            "router_url": f"http://{_HOST}:{self._router_port}",
            "database": str(self._folder / "batch.sqlite3"),
            "files": str(self._folder / "files"),
            "max_lines": self._lines,
            "max_file_mib": 4096.0,
        }
        return {
            "version": "v1",
            "carbon": {"zones": {"GB": static}},
            "planner": {"listen": f"{_HOST}:{free_port()}"},  # away: lines go as there is room
            "nodes": {"one": {"zone": "GB"}},
            "models": {
                "digits": {
                    "slo": {"latency_s": 0.5},
                    "demand_rps": 1.0,
                    "variants": {"v": variant},
                }
            },
            "batch": batch,
        }

    async def run(self) -> Outcome:
        """Submit, kill and wait; read the results."""
        responder = ("benchmarks.waiting.responder", str(self._router_port))
        async with _process(*responder), aiohttp.ClientSession() as http:
            batch, took_s, gaps = "", 0.0, self._gaps_s()
            for gap_s in (*gaps, None):
                async with self._service() as process:
                    await self._up(http)
                    if not batch:
                        self._cpu_s -= _cpu_s(process.pid)
                        batch = await self._submit(http)
                    started_s = time.perf_counter()
                    ended = await self._wait(http, batch, process, gap_s)
                    took_s += time.perf_counter() - started_s
            results = await self._results(ended)
        lost, doubled = _compared(results, self._lines)
        return Outcome(
            self._lines,
            self._kills,
            lost,
            doubled,
            self._lines / took_s,
            self._cpu_s * 1e6 / self._lines,
            self._rss_mib,
        )

    def _gaps_s(self) -> list[float]:
        """Return times from a start to a kill, s: at 2,000 lines/s all fall into the batch."""
        mean_s = self._lines / 2_000 / (self._kills + 1)
        return [self._rng.uniform(0.2, 1.5) * mean_s for _ in range(self._kills)]

    @asynccontextmanager
    async def _service(self) -> AsyncIterator[asyncio.subprocess.Process]:
        command = ("services.cli", "batch", "serve", "--config", str(self._config))
        async with _process(*command) as process:
            yield process

    async def _up(self, http: aiohttp.ClientSession) -> None:
        async with asyncio.timeout(120):
            while True:
                try:
                    async with http.get(f"{self._url}/batches") as response:
                        response.raise_for_status()
                        return
                except _GONE:
                    await asyncio.sleep(_LOOK_S)

    async def _submit(self, http: aiohttp.ClientSession) -> str:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", _content(self._lines), filename="in.jsonl")
        async with http.post(f"{self._url}/files", data=form) as response:
            response.raise_for_status()
            file = await response.json()
        begun = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        async with http.post(f"{self._url}/batches", json=begun) as response:
            response.raise_for_status()
            return str((await response.json())["id"])

    async def _wait(
        self,
        http: aiohttp.ClientSession,
        batch: str,
        process: asyncio.subprocess.Process,
        gap_s: float | None,
    ) -> dict[str, Any]:
        """Wait until the batch has ended, or kill the service after a time."""
        end_s = float("inf") if gap_s is None else time.perf_counter() + gap_s
        found: dict[str, Any] = {}
        while time.perf_counter() < end_s and found.get("status") != "completed":
            async with http.get(f"{self._url}/batches/{batch}") as response:
                found = await response.json()
            if found.get("status") in {"failed", "expired", "cancelled"}:
                raise RuntimeError(f"the batch ended as {found}")
            await asyncio.sleep(_LOOK_S)
        self._weigh(process.pid)
        if gap_s is not None:
            process.send_signal(signal.SIGKILL)
        return found

    def _weigh(self, pid: int) -> None:
        """Add the processor time of the service, and note its memory."""
        self._cpu_s += _cpu_s(pid)
        status = Path(f"/proc/{pid}/status").read_text()
        peak = next(each for each in status.splitlines() if each.startswith("VmHWM"))
        self._rss_mib = max(self._rss_mib, int(peak.split()[1]) / 1024)

    async def _results(self, ended: dict[str, Any]) -> list[int]:
        """Return the answered rows, in the order of the output file."""
        content = (self._folder / "files" / ended["output_file_id"]).read_bytes().splitlines()
        return [
            int(json.loads(line)["response"]["body"]["outputs"][0]["data"][0]) for line in content
        ]


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _compared(rows: list[int], lines: int) -> tuple[int, int]:
    """Return how many lines have no result, and how many results are too many."""
    return lines - len(set(rows) & set(range(lines))), len(rows) - len(set(rows))


async def _content(lines: int) -> AsyncIterator[bytes]:
    """Yield a file of lines whose answers are their numbers."""
    for start in range(0, lines, _CHUNK_LINES):
        yield b"".join(
            b'{"custom_id":"r%d","method":"POST","url":"%b","body":{"inputs":[{"name":"x",'
            b'"shape":[1,4],"datatype":"FP32","data":[%d,0,0,0]}]}}\n'
            % (number, ENDPOINT.encode(), number)
            for number in range(start, min(start + _CHUNK_LINES, lines))
        )


@asynccontextmanager
async def _process(*module: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a module as a process, which is killed at the end of the block."""
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *module, stdout=null, stderr=null
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
