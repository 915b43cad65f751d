"""Ways to two servers of the OpenAI API, as processes: Envoy, Envoy with a picker, our router."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import yaml

from benchmarks.picker.envoy import envoy
from services.kit.net import free_port

ROOT: Final = Path(__file__).parents[2]
_PATIENCE_S: Final = 120.0
_LANGUAGE: Final = {"kind": "language", "parameters_b": 8}


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the servers.

    Attributes:
        url: Where clients send requests.
        parts: Its processes by name; those that they started count as theirs.
        status: Where the picker's metrics are; "": there is no picker.
    """

    url: str
    parts: Mapping[str, Sequence[psutil.Process]]
    status: str = ""

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time of each part so far, s."""
        return {
            name: sum(sum(each.cpu_times()[:2]) for each in processes)
            for name, processes in self.parts.items()
        }


@asynccontextmanager
async def process(command: Sequence[str | Path], folder: Path) -> AsyncIterator[psutil.Process]:
    """Run a process while the block runs; its log is in the folder."""
    with (folder / "log").open("ab") as log:
        started = await asyncio.to_thread(
            subprocess.Popen,
            list(map(str, command)),
            cwd=ROOT,
            env={**os.environ, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield psutil.Process(started.pid)
    finally:
        if started.poll() is None:
            started.terminate()
        try:
            await asyncio.to_thread(started.wait, 10)
        except subprocess.TimeoutExpired:
            started.kill()
            await asyncio.to_thread(started.wait)


@asynccontextmanager
async def servers(folder: Path, token_ms: float) -> AsyncIterator[list[str]]:
    """Run two servers, and yield their addresses."""
    async with AsyncExitStack() as stack:
        addresses = []
        for _ in range(2):
            port = free_port()
            command = (sys.executable, "-m", "benchmarks.picker.server", str(port), str(token_ms))
            await stack.enter_async_context(process(command, folder))
            await answered(f"http://127.0.0.1:{port}/health")
            addresses.append(f"127.0.0.1:{port}")
        yield addresses


async def answered(url: str, body: Mapping[str, Any] | None = None) -> None:
    """Wait until a URL is answered with 200."""
    async with asyncio.timeout(_PATIENCE_S), aiohttp.ClientSession(trust_env=False) as session:
        while True:
            method = "GET" if body is None else "POST"
            try:
                async with session.request(method, url, json=body) as answer:
                    await answer.read()
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


@asynccontextmanager
async def through_envoy(
    folder: Path, addresses: Sequence[str], mode: Mapping[str, str], transport: str = ""
) -> AsyncIterator[Way]:
    """Run Envoy; with a picker on a transport ("own", "grpcio"), or round robin ("").

    Args:
        folder: For files.
        addresses: The servers.
        mode: Processing mode.
        transport: Of the picker.
    """
    async with AsyncExitStack() as stack:
        parts: dict[str, Sequence[psutil.Process]] = {}
        listen = status = ""
        if transport:
            listen, status = (f"127.0.0.1:{free_port()}" for _ in range(2))
            file = folder / f"picker-{transport}.yaml"
            file.write_text(yaml.safe_dump(picking(addresses, listen, status, transport)))
            command = (sys.executable, "-m", "services.cli", "router", "serve", "-c", file)
            parts["picker"] = [await stack.enter_async_context(process(command, folder))]
        before = {each.pid for each in psutil.Process().children()}
        url = await stack.enter_async_context(envoy(folder, addresses, listen, mode))
        parts["envoy"] = [each for each in psutil.Process().children() if each.pid not in before]
        body = {"model": "m", "prompt": "1", "max_tokens": 1}
        if transport:
            await _ready(f"http://{status}/metrics")
        await answered(f"{url}/v1/completions", body)
        yield Way(url, parts, f"http://{status}/metrics" if status else "")


async def _ready(url: str) -> None:
    """Wait until the picker has both servers."""
    await answered(url)
    await asyncio.sleep(3)  # it looks at each server once a second


def picking(
    addresses: Sequence[str], listen: str, status: str, transport: str
) -> Mapping[str, Any]:
    """Return the deployment file of a router that is a picker and nothing else."""
    pool = {
        "variant": "v",
        "gpu": "a100-40gb",
        "zone": "DE",
        "addresses": list(addresses),
        "slots": 4096,
    }
    return {
        "version": "v1",
        "log_level": "warning",
        "carbon": {
            "listen": f"127.0.0.1:{free_port()}",
            "zones": {"DE": {"source": {"kind": "static", "intensity_gco2e_per_kwh": 300}}},
        },
        "join": {"zone": "DE"},
        "models": {
            "m": {
                "slo": {"latency_s": 20},
                "demand_rps": 1,
                "max_queue": 10_000,
                "instance_choice": "least_expected_completion",
                "variants": {"v": _variant({"kind": "openai", "address": addresses[0]})},
                "servers": {"here": pool},
            }
        },
        "planner": {"listen": f"127.0.0.1:{free_port()}"},
        "router": {
            "listen": f"127.0.0.1:{free_port()}",
            "http_listen": "",
            "picker_listen": listen,
            "metrics": status,
        },
        "rpc": {"transport": transport},
    }


def _variant(runtime: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"accuracy": 30, "load_s": 2, "profile": _LANGUAGE, "runtime": runtime}


@asynccontextmanager
async def through_router(folder: Path, token_ms: float) -> AsyncIterator[Way]:
    """Run the suite with our router in the path of two such servers, each behind a worker."""
    names = ("carbon", "agent", "planner", "router", "http", "console")
    at = {name: f"127.0.0.1:{free_port()}" for name in names}
    program = [sys.executable, "-m", "benchmarks.picker.server", "{port}", str(token_ms)]
    runtime = {"kind": "openai", "command": program, "max_tokens": 64, "slots": 64}
    made = {
        "version": "v1",
        "log_level": "warning",
        "carbon": {
            "listen": at["carbon"],
            "zones": {"DE": {"source": {"kind": "static", "intensity_gco2e_per_kwh": 300}}},
        },
        "nodes": {
            "cpu-0": {
                "listen": at["agent"],
                "zone": "DE",
                "cpu": {"cores": 2},
                "state_dir": str(folder / "agent"),
            }
        },
        "models": {
            "m": {
                "slo": {"latency_s": 20},
                "demand_rps": 0.2,
                "max_queue": 10_000,
                "replicas_min": 2,
                "variants": {
                    "v": {
                        **_variant(runtime),
                        "profile": {
                            "kind": "analytic",
                            "gmacs_per_item": 0.05,
                            "memory_mib": 100,
                            "memory_mib_per_item": 1,
                        },
                    }
                },
            }
        },
        "planner": {
            "listen": at["planner"],
            "database": str(folder / "planner.sqlite3"),
            "max_processes": 1,
        },
        "router": {"listen": at["router"], "http_listen": at["http"]},
        "console": {"listen": at["console"]},
    }
    file = folder / "suite.yaml"
    file.write_text(yaml.safe_dump(made))
    command = (sys.executable, "-m", "services.cli", "up", "-c", file)
    async with process(command, folder) as suite:
        url = f"http://{at['http']}"
        await answered(f"{url}/v1/completions", {"model": "m", "prompt": "1", "max_tokens": 1})
        found: dict[str, list[psutil.Process]] = {"router": [], "workers": []}
        for each in suite.children(recursive=True):
            line = " ".join(each.cmdline())
            if "router serve" in line:
                found["router"].append(each)
            elif "gpuagent.worker" in line:
                found["workers"].append(each)
        yield Way(url, found)
