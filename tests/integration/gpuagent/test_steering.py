"""Clocks of a server that others run, on simulated NVML: lowered, given back, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core.process_activity import ProcessActivity
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.fake_nvml.core.sensors import NoActivity
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
from services.gpuagent.devices.hardware import permissions_of
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.node_place import NodePlace
from services.gpuagent.observation.observer import ObservedServer, Observer
from services.gpuagent.observation.scraping import Page
from services.gpuagent.observation.workloads import Workload
from services.gpuagent.steering.loop import ClockSteering
from services.kit.config import Node, SteeredServer
from services.kit.errors import PermissionDenied
from services.kit.hardware import gpu_types
from services.kit.hardware.gpu_types import curve_of
from tests.support.observed_day import MODEL, START, LawfulServer
from tests.support.virtual_clock import VirtualClock

TABLE = gpu_types.load("v100")


@dataclass
class Running(NoActivity):
    """Processes on the GPU."""

    pids: list[int] = field(default_factory=lambda: [41])

    def in_use(self) -> bool:
        return bool(self.pids)

    def processes(self) -> list[ProcessActivity]:
        return [ProcessActivity(pid, "", 1.0, 2**30, True) for pid in self.pids]


class Pods:
    """Each process is a pod."""

    by_key: dict[str, Workload] = {}  # noqa: RUF012 - nothing is put into it

    @staticmethod
    def of(pid: int) -> Workload:
        return Workload(f"pod:{pid}", f"pod {pid}")


@dataclass
class Rack:
    """A node without control that steers one server, in virtual time."""

    steering: ClockSteering
    device: DeviceThread
    running: Running
    clock: VirtualClock
    server: LawfulServer = field(default_factory=LawfulServer)

    @property
    def gpu_uuid(self) -> str:
        return next(iter(self.steering.observer.gpus))

    async def clock_mhz(self) -> int:
        return (await self.device.call(lambda d: d.list()))[0].clock_mhz

    async def serve(self, seconds: int, *, pages: bool = True) -> None:
        observer = self.steering.observer
        for _ in range(0, seconds, 10):
            ratio = await self.clock_mhz() / TABLE.max_clock_mhz
            self.server.advance(10.0, 4.0, curve_of(TABLE.performance).stretch(1.0, ratio))
            await self.clock.advance(10.0)
            await observer.read_gpus()
            if pages:
                page = Page("u", (self.server.page,))
                observer.servers["u"].add(self.clock.monotonic(), page)
            await self.steering.look()


@asynccontextmanager
async def rack(folder: Path, **given: object) -> AsyncIterator[Rack]:
    servers = (SteeredServer(model=MODEL, tpot_s=1.0),)
    settings = Node.model_validate({
        "zone": "Z", "simulated": ["v100"], "control": False, "observe": True,
        "steer_clocks": servers, "clock_floor": 0.6, **given,
    })  # fmt: skip
    running, clock = Running(), VirtualClock(START)
    library = FakeNvml("node", ["v100"], activity=lambda _: running)
    restore = install(library)
    permissions = permissions_of(NodePlace("node", settings, folder))
    try:
        async with DeviceThread(NvmlGpus(permissions=permissions, simulated=True)) as device:
            locks = ClockLocks(device, folder / "clocks.json", allowed=settings.may_hold_clocks)
            await locks.restore()
            observer = Observer(device, lambda: None, discover=False, monotonic=clock.monotonic)
            observer._workloads = Pods()  # type: ignore[assignment]
            observer.servers["u"] = ObservedServer("u", "pod:41")
            await observer.start()
            steering = ClockSteering(
                observer, locks, settings.steer_clocks, settings.clock_floor, clock
            )
            yield Rack(steering, device, running, clock)
    finally:
        restore()


async def test_clocks_are_lowered_to_the_floor_and_given_back_at_the_end(tmp_path: Path) -> None:
    """And nothing else may be changed on a node without control."""
    async with rack(tmp_path) as node:
        highest_mhz = await node.clock_mhz()
        await node.serve(600)
        low_mhz = await node.clock_mhz()
        assert 0.6 * TABLE.max_clock_mhz <= low_mhz < 0.75 * TABLE.max_clock_mhz
        assert node.steering.observer.lowered == {node.gpu_uuid}
        with pytest.raises(PermissionDenied, match="control"):
            await node.device.call(lambda d: d.create_slice(node.gpu_uuid, Placement("1g.5gb", 0)))
        await node.steering.clocks.release()
        assert await node.clock_mhz() == highest_mhz


@pytest.mark.parametrize("why", ["a stranger on the GPU", "no page"])
async def test_a_gpu_that_cannot_be_judged_has_its_own_clock(tmp_path: Path, why: str) -> None:
    async with rack(tmp_path) as node:
        highest_mhz = await node.clock_mhz()
        await node.serve(300)
        assert await node.clock_mhz() < highest_mhz
        if why == "no page":
            await node.serve(40, pages=False)
        else:
            node.running.pids.append(42)
            await node.serve(10)
        assert await node.clock_mhz() == highest_mhz
        node.running.pids = [41]
        await node.serve(300)  # and it is lowered again once it can be
        assert await node.clock_mhz() < highest_mhz


async def test_an_agent_that_was_killed_gives_clocks_back_at_its_next_start(tmp_path: Path) -> None:
    async with rack(tmp_path) as node:
        highest_mhz = await node.clock_mhz()
        await node.serve(300)
        assert await node.clock_mhz() < highest_mhz
        after = ClockLocks(node.device, tmp_path / "clocks.json", allowed=True)
        await after.restore()
        assert await node.clock_mhz() == highest_mhz


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"control": True}, "control: false"),
        ({"observe": False}, "observe: true"),
        ({"simulated": None}, "allow_clocks: true"),
        ({"steer_clocks": [{"model": MODEL}]}, "at least one"),
        ({"steer_clocks": [{"model": MODEL, "tpot_s": 1}] * 2}, "named twice"),
    ],
)
async def test_settings_that_grant_too_little_are_refused_by_name(
    tmp_path: Path, given: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        async with rack(tmp_path, **given):
            pass
