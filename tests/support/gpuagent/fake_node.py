"""A simulated node below unmodified pynvml, with its work and its time in the test's hands."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from services.gpuagent.core.process_activity import ProcessActivity
from services.gpuagent.devices.fake_nvml.library import install
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from tests.support.gpuagent.nvml_faults import FaultyNvml

Start = Callable[..., FaultyNvml]
Open = Callable[..., NvmlGpus]


@dataclass
class Work:
    """Processes and load on a GPU, as the test sets them."""

    joules: float = 0.0
    watts: float = 0.0
    used_s: float = 0.0
    held: set[str] = field(default_factory=set)
    ratios: list[float] = field(default_factory=list)
    running: dict[int, ProcessActivity] = field(default_factory=dict)

    def energy_j(self) -> float:
        return self.joules

    def power_w(self) -> float:
        return self.watts

    def context_s(self) -> float:
        return self.used_s

    def in_use(self) -> bool:
        return bool(self.held)

    def busy(self, slice_uuid: str) -> bool:
        return slice_uuid in self.held

    def processes(self) -> Sequence[ProcessActivity]:
        return tuple(self.running.values())

    def set_clock_ratio(self, ratio: float) -> None:
        self.ratios.append(ratio)


@dataclass
class Time:
    """Seconds since the epoch, as the test says."""

    now_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the library over fresh GPUs; each start is like a new process."""
    restores = []

    def started(*types: str, **options: Any) -> FaultyNvml:
        library = FaultyNvml("node", types or ("a100-40gb",), **options)
        restores.append(install(library))
        pynvml.nvmlInit()
        return library

    yield started
    for restore in reversed(restores):
        restore()


@pytest.fixture
def gpus() -> Iterator[Open]:
    """Open the device port; it is closed after the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(NvmlGpus(simulated=True, **options))


@pytest.fixture
def library(start: Start, work: Work) -> FaultyNvml:
    return start("a100-40gb", "t4", "p4", activity=lambda _: work)


@pytest.fixture
def cut(library: FaultyNvml, gpus: Open) -> tuple[NvmlGpus, str]:
    """An A100 in MIG mode."""
    port, uuid = gpus(), library.gpu_uuids[0]
    port.set_mig_mode(uuid, enabled=True)
    return port, uuid
