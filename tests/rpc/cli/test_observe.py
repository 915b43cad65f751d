"""`cinquefoil observe` beside a server that it did not start: llama.cpp with a real model."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from services.cli.observe import run
from services.cli.observe.run import Options, observe
from services.gpuagent.core.process_activity import ProcessActivity
from services.gpuagent.devices.fake_nvml.core.sensors import NoActivity
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
from services.gpuagent.observation import observer
from services.kit.net import free_port
from tests.support.paths import ROOT
from tests.support.worker.language_worker import needs_llama

WATTS = 300.0


class Computing(NoActivity):
    """A simulated GPU that a process uses for as long as it has processor time."""

    def __init__(self, pid: int) -> None:
        self._process, self._began_s = psutil.Process(pid), time.monotonic()
        self._before_s = sum(self._process.cpu_times()[:2])

    def busy_s(self) -> float:
        return sum(self._process.cpu_times()[:2]) - self._before_s

    def energy_j(self) -> float:
        return WATTS * self.busy_s()

    def context_s(self) -> float:
        return time.monotonic() - self._began_s

    def in_use(self) -> bool:
        return True

    def processes(self) -> list[ProcessActivity]:
        return [ProcessActivity(self._process.pid, "", self.busy_s(), 2**28)]


@asynccontextmanager
async def llama_server(session: aiohttp.ClientSession) -> AsyncIterator[tuple[int, str]]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, ROOT / "examples/openai/llama_server.py", str(port),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        break
            except aiohttp.ClientError:
                assert process.returncode is None
            await asyncio.sleep(0.1)
        yield process.pid, url
    finally:
        process.terminate()
        await process.wait()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - figures have no events
        await asyncio.sleep(0.05)


@needs_llama
@pytest.mark.timeout(240)
async def test_a_running_server_is_found_and_its_tokens_have_joules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its page is found on its port; tokens are the answers' own, joules those that it drew."""
    for name in ("METER_S", "SCRAPE_S", "DISCOVER_S"):
        monkeypatch.setattr(observer, name, 0.25)
    tokens, seen = 0, list[observer.Observer]()

    class Seen(observer.Observer):
        async def start(self) -> None:
            seen.append(self)
            await super().start()

    def counted() -> float | None:
        pages = [each for one in seen for each in one.servers.values()]
        return pages[0].accounts[""].counts.get("answer_tokens") if pages else None

    monkeypatch.setattr(run, "Observer", Seen)
    async with aiohttp.ClientSession() as session, llama_server(session) as (pid, url):
        work = Computing(pid)
        restore = install(FakeNvml("node", ["l4-24gb"], activity=lambda _: work))
        try:
            options = Options(seconds=600, intensity=300.0, out=tmp_path)
            observing = asyncio.create_task(observe(options))
            report = tmp_path / "report.json"
            await until(lambda: counted() is not None)  # before the first request
            for _ in range(4):
                request = {"prompt": "Once upon a time", "max_tokens": 24}
                async with session.post(f"{url}/v1/completions", json=request) as answer:
                    tokens += (await answer.json())["usage"]["completion_tokens"]
            await until(lambda: counted() == tokens)
            drawn_j = work.energy_j()
            observing.cancel()  # ctrl-c: the report of what there is
            await observing
        finally:
            restore()
    found = json.loads(report.read_text())
    (server,) = found["servers"]
    assert (server["server"], server["answer_tokens"]) == ("llama.cpp", tokens)
    assert server["active_j"] == pytest.approx(drawn_j, rel=0.3)
    assert server["j_per_token"] == pytest.approx(server["active_j"] / tokens)
    assert found["workloads"][0]["name"].endswith(url.rpartition(":")[2])
    assert {step["name"] for step in found["steps"]} == {
        *("clocks", "elasticity", "consolidation", "variants", "time")
    }
    assert "</html>" in (tmp_path / "report.html").read_text()
