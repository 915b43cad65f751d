"""An agent that steers the clock of a server that it did not start, by the server's own page."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from services.gpuagent.core.process_activity import ProcessActivity
from services.gpuagent.devices import hardware
from services.gpuagent.devices.fake_nvml.core.sensors import NoActivity
from services.gpuagent.devices.fake_nvml.library import FakeNvml
from services.gpuagent.observation import observer
from services.gpuagent.steering import loop
from services.gpuagent.steering.core import steered_gpu
from services.kit.hardware import gpu_types
from services.kit.net import free_port
from services.kit.server_metrics.figures import Histogram, ServerFigures
from tests.support.gpuagent.agent_service import WHOLE_GPU, agent, deployment, planning
from tests.support.observed_day import MODEL, LawfulServer
from tests.support.waiting import until


class OneProcess(NoActivity):
    """This process runs on the GPU, as the driver says."""

    def in_use(self) -> bool:
        return True

    def processes(self) -> list[ProcessActivity]:
        return [ProcessActivity(os.getpid(), "", 1.0, 2**30, True)]


@dataclass
class Page:
    """A server's metrics page: ten seconds of load pass from one reading to the next."""

    server: LawfulServer = field(default_factory=LawfulServer)

    async def get(self, _: web.Request) -> web.Response:
        """Return the page."""
        self.server.advance(10.0, 4.0)
        return web.Response(text="\n".join(_lines(self.server.page)) + "\n")


def _lines(page: ServerFigures) -> Iterator[str]:
    of = f'model_name="{MODEL}"'
    for name, value in (
        ("request_success_total", page.requests),
        ("prompt_tokens_total", page.prompt_tokens),
        ("generation_tokens_total", page.answer_tokens),
        ("num_requests_running", page.running),
        ("num_requests_waiting", page.waiting),
    ):
        yield f"vllm:{name}{{{of}}} {value}"
    times = page.token or Histogram()
    for bound_s, count in times.buckets.items():
        yield f'vllm:inter_token_latency_seconds_bucket{{{of},le="{bound_s}"}} {count}'
    yield f"vllm:inter_token_latency_seconds_count{{{of}}} {times.count}"
    yield f"vllm:inter_token_latency_seconds_sum{{{of}}} {times.total_s}"


async def test_a_served_page_lowers_the_clock_until_the_agent_ends(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the ports of the process on the GPU; the clock is the board's own at the end."""
    made: list[FakeNvml] = []

    def library(*given: Any, **named: Any) -> FakeNvml:
        made.append(FakeNvml(*given, **named | {"activity": lambda _: OneProcess()}))
        return made[-1]

    def locked_mhz() -> tuple[int, int] | None:
        return made[-1]._node.gpus[1].state.locked_mhz

    monkeypatch.setattr(hardware, "FakeNvml", library)
    for module in (loop, observer):
        monkeypatch.setattr(module, "SCRAPE_S", 0.05)
    monkeypatch.setattr(observer, "DISCOVER_S", 0.2)
    monkeypatch.setattr(steered_gpu, "SETTLED_S", 0.0)
    app = web.Application()
    app.router.add_get("/metrics", Page().get)
    served = TestServer(app)
    await served.start_server()
    metrics = f"127.0.0.1:{free_port()}"
    steered = ({"model": MODEL, "tpot_s": 1.0},)
    try:
        async with planning() as (_, port), aiohttp.ClientSession() as session:
            settings = deployment(
                tmp_path, model, f"127.0.0.1:{port}", control=False, observe=True,
                steer_clocks=steered, clock_floor=0.6, metrics=metrics,
            )  # fmt: skip
            async with agent(settings):

                async def held() -> bool:
                    return await _steered_hz(session, metrics) > 0

                await until(held)
                least_mhz = 0.6 * gpu_types.load("t4").max_clock_mhz
                assert 1e-6 * await _steered_hz(session, metrics) >= least_mhz
                await until(lambda: locked_mhz() is not None)  # written down first, then set
            assert locked_mhz() is None
    finally:
        await served.close()


async def _steered_hz(session: aiohttp.ClientSession, address: str) -> float:
    """Return the clock at which the GPU is held; 0: none."""
    async with session.get(f"http://{address}/metrics") as answer:
        page = await answer.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "cinquefoil_steered_clock_hertz"
        and sample.labels["gpu_uuid"] == WHOLE_GPU
    )
