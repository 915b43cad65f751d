"""Observes a node's GPUs and all that runs on them, also of others. Changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import pynvml

from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.devices.device_thread import Devices, DeviceThread
from services.gpuagent.observation import pods
from services.gpuagent.observation.core.ledger import GpuLedger, Observation
from services.gpuagent.observation.core.server_account import ServerAccount
from services.gpuagent.observation.core.timeline import Timeline
from services.gpuagent.observation.process_readings import Activity, ProcessReader
from services.gpuagent.observation.scraping import Page, listening_urls, read_page
from services.gpuagent.observation.workloads import Workload, Workloads
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

METER_S: Final = 2.0
"""Time between two readings of the GPUs, s."""

ACTIVITY_S: Final = 0.2
"""Time between two readings of the processes' activity, s.

An H200's driver (580.159.04) had at most one new sample per 200 ms for
nvmlDeviceGetProcessUtilization, kept none before it, and booked the whole GPU's utilisation to one
process: the more samples, the better the shares (docs/measurements/gpuagent.md).
"""

SCRAPE_S: Final = 10.0
"""Time between two readings of servers' pages, s."""

DISCOVER_S: Final = 30.0
"""Time between two searches for servers, s."""

MAX_SERVERS: Final = 64
MAX_ACCOUNTS: Final = 256
"""Models of one server since it was found: a page may name others each time."""

_log = logs.get("observer")


@dataclass(slots=True)
class ObservedServer:
    """A server whose metrics page is read.

    Attributes:
        url: The page.
        workload: Key of the workload whose process listens; "": given by its address, not found.
        accounts: By model.
    """

    url: str
    workload: str
    accounts: dict[str, ServerAccount] = field(default_factory=dict)

    def add(
        self, now_s: float, page: Page, active_j: float | None = None, *, learn: bool = True
    ) -> None:
        """Count what came since its last page.

        Args:
            now_s: Monotonic time of the page, s.
            page: The page.
            active_j: Active energy of its workload so far, J; None: not known.
            learn: Its profile is learnt from it.
        """
        own_j = active_j if len(page.figures) == 1 else None
        for each in page.figures:
            if each.model in self.accounts or len(self.accounts) < MAX_ACCOUNTS:
                account = self.accounts.setdefault(
                    each.model, ServerAccount(each.server, each.model)
                )
                account.add(now_s, each, own_j, learn=learn)


@dataclass(slots=True)
class ObservedGpu:
    """A GPU under observation.

    Attributes:
        info: The GPU.
        ledger: Its account.
        reader: Reads its processes.
        power_w: Its last power, W.
        method: Of its meter.
        present: Workloads that have a process on it now.
    """

    info: GpuInfo
    ledger: GpuLedger
    reader: ProcessReader
    power_w: float = 0.0
    method: str = ""
    present: frozenset[str] = frozenset()


class Observer:
    """Follows all GPUs of a node, the processes on them, and the servers among these.

    Args:
        device: The GPUs; only read.
        intensity: Returns the carbon intensity now, gCO2e/kWh; None: not known.
        servers: Pages that were given; others are found by the ports of processes on GPUs.
        discover: Whether to look for further servers.
        kubelet: Socket of the kubelet's pod resources, where there is one.
        monotonic, wall: Clocks, s.

    Attributes:
        gpus: By UUID.
        servers: By page.
        workloads: Those that were seen, by key.
        timeline: Energy and emissions by minute.
        lowered: GPUs below their highest clock: no profile is learnt on them.
    """

    def __init__(  # noqa: PLR0913 - a composition's choices, all but two with defaults
        self,
        device: DeviceThread,
        intensity: Callable[[], float | None],
        *,
        servers: Sequence[str] = (),
        discover: bool = True,
        kubelet: Path = pods.SOCKET,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._device, self._intensity = device, intensity
        self._monotonic, self._wall = monotonic, wall
        self._discover, self._kubelet = discover, kubelet
        self.gpus: dict[str, ObservedGpu] = {}
        self.servers = {url: ObservedServer(url, "") for url in servers}
        self._workloads = Workloads()
        self.timeline = Timeline()
        self.lowered: frozenset[str] = frozenset()
        self._pids: frozenset[int] = frozenset()

    @property
    def workloads(self) -> Mapping[str, Workload]:
        """The workloads that were seen, by key."""
        return self._workloads.by_key

    def workload_of(self, pid: int) -> str:
        """Return the key of the workload of a process."""
        return self._workloads.of(pid).key

    async def start(self) -> None:
        """Find the GPUs and read them for the first time.

        Raises:
            ServiceError: The driver does not answer.
        """
        for info in await self._device.call(lambda d: d.list()):
            model = info.model
            ledger = GpuLedger(model.idle_power_w, model.context_power_w, model.max_power_w)
            self.gpus[info.uuid] = ObservedGpu(info, ledger, ProcessReader(info.uuid))
        await self.read_gpus()

    async def run(self) -> None:
        """Observe until cancelled."""
        async with (
            aiohttp.ClientSession(trust_env=False) as session,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._every(METER_S, self.read_gpus), name="observer.gpus")
            tasks.create_task(self._every(ACTIVITY_S, self.read_activity), name="observer.activity")
            tasks.create_task(
                self._every(SCRAPE_S, lambda: self.read_servers(session)), name="observer.servers"
            )
            if self._kubelet.exists():
                tasks.create_task(self._every(DISCOVER_S, self.find_pods), name="observer.pods")
            if self._discover:
                tasks.create_task(
                    self._every(DISCOVER_S, lambda: self.find_servers(session)),
                    name="observer.discovery",
                )

    async def _every(self, pause_s: float, work: Callable[[], object]) -> None:
        while True:
            result = work()
            if asyncio.iscoroutine(result):
                await result
            await asyncio.sleep(pause_s)

    async def read_activity(self) -> None:
        """Collect the newest sample of the processes' activity until the next `read_gpus`."""
        readers = [gpu.reader for gpu in self.gpus.values() if gpu.reader.sampled]

        def sample(_: Devices) -> None:
            for each in readers:
                each.sample()

        if readers:
            await self._device.call(sample)

    async def read_gpus(self) -> None:
        """Read every GPU's meter and processes, and book what they drew."""
        intensity = self._intensity()
        pids: set[int] = set()
        for gpu in self.gpus.values():
            try:
                seen = await self._device.call(partial(self._read, gpu=gpu, intensity=intensity))
            except ServiceError as error:  # lost, or the driver is busy: the next reading has it
                _log.debug("GPU not read", gpu=gpu.info.uuid, error=error.message)
                continue
            pids.update(each.pid for each in seen.processes)
        self._pids = frozenset(pids)
        self.timeline.add(self._wall(), self._totals())

    def _read(self, devices: Devices, *, gpu: ObservedGpu, intensity: float | None) -> Activity:
        """Read one GPU, in the devices' thread."""
        meter = devices.meter(gpu.info.uuid)
        now_s = self._monotonic()
        try:
            seen = gpu.reader.read()
        except pynvml.NVMLError as error:
            _log.debug("processes not read", gpu=gpu.info.uuid, error=str(error))
            seen = Activity((), {}, "none")
        active: dict[str, float] = {}
        memory: dict[str, int] = {}
        for each in seen.processes:
            key = self._workloads.of(each.pid).key
            memory[key] = memory.get(key, 0) + each.memory_bytes
        for pid, share in seen.active.items():
            key = self._workloads.of(pid).key
            active[key] = active.get(key, 0.0) + share
        gpu.power_w, gpu.method = meter.power_w or 0.0, meter.method
        gpu.present = frozenset(memory)
        gpu.ledger.observe(
            Observation(now_s, meter.energy_j, active, memory, seen.method, seen.busy, intensity)
        )
        return seen

    def _totals(self) -> dict[str, float]:
        """Return the running totals that the timeline keeps the steps of."""
        ledgers = [gpu.ledger for gpu in self.gpus.values()]
        found = {
            "energy_j": sum(each.total_j for each in ledgers),
            "idle_j": sum(each.idle_j for each in ledgers),
            "carbon_gco2e": sum(each.carbon_gco2e for each in ledgers),
        }
        for quantity in ("requests", "prompt_tokens", "answer_tokens"):
            found[quantity] = sum(each.counts.get(quantity, 0.0) for each in self._accounts())
        return found

    def _accounts(self) -> Iterator[ServerAccount]:
        for server in self.servers.values():
            yield from server.accounts.values()

    async def find_servers(self, session: aiohttp.ClientSession) -> None:
        """Look for metrics pages on the ports of processes on the GPUs."""
        owners = {pid: self._workloads.of(pid).key for pid in self._pids}
        for key in dict.fromkeys(owners.values()):
            first = [pid for pid, owner in owners.items() if owner == key]
            pids = [each for pid in first for each in self._workloads.members(pid)]
            for url in await asyncio.to_thread(listening_urls, pids):
                known = self.servers.get(url)
                if known is not None:
                    known.workload = known.workload or key
                elif len(self.servers) < MAX_SERVERS:
                    page = await read_page(session, url)
                    if page is not None:
                        self.servers[url] = ObservedServer(url, key)
                        self.servers[url].add(self._monotonic(), page)

    async def find_pods(self) -> None:
        """Learn the namespaces of pods, and the pods of processes whose own files do not say."""
        found = await pods.read(self._kubelet)
        if found is None:
            return
        for gpu in self.gpus.values():
            devices = (
                gpu.info.uuid,
                f"gpu-{gpu.info.index}",
                *(uuid for _, uuid in gpu.info.slices),
            )
            for key in gpu.ledger.workloads:
                workload = self._workloads.by_key.get(key)
                if workload is not None and "/" not in workload.pod:
                    pod = found.of(workload, devices)
                    self._workloads.rename(key, pod)

    async def read_servers(self, session: aiohttp.ClientSession) -> None:
        """Read the page of every known server."""
        for server in list(self.servers.values()):
            page = await read_page(session, server.url)
            if page is not None:
                lowered = (self.gpus[uuid].present for uuid in self.lowered)
                learn = not any(server.workload in each for each in lowered)
                server.add(self._monotonic(), page, self.active_j(server), learn=learn)

    def active_j(self, server: ObservedServer) -> float | None:
        """Return the active energy of a server's workload so far, J; None: it is not its own."""
        others = sum(each.workload == server.workload for each in self.servers.values())
        ledgers = [gpu.ledger for gpu in self.gpus.values()]
        held = [
            each.workloads[server.workload] for each in ledgers if server.workload in each.workloads
        ]
        return sum(each.active_j for each in held) if held and others == 1 else None
