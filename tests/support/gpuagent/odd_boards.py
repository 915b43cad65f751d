"""Boards of which half works: an agent's simulated driver refuses queries, or miscounts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from services.gpuagent.devices import hardware
from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.devices.fake_nvml.core.sensors import Sensors
from tests.support.gpuagent.nvml_faults import FaultyNvml, InjectedFault

MEMORY = "nvmlDeviceGetMemoryInfo"
DEFAULT_LIMIT = "nvmlDeviceGetPowerManagementDefaultLimit"
ENFORCED_LIMIT = "nvmlDeviceGetEnforcedPowerLimit"
POWER = "nvmlDeviceGetPowerUsage"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
CLOCK = "nvmlDeviceGetClockInfo"
MEMORY_CLOCKS = "nvmlDeviceGetSupportedMemoryClocks"
CORES = "nvmlDeviceGetNumGpuCores"
PLACEMENTS = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"


@dataclass(frozen=True)
class OddBoard:
    """A board as its owners report it, beside a healthy one.

    Attributes:
        name: Of the case.
        product: Product name that the driver says; "": the type's.
        gpu_type: Simulated type below it.
        refused: Return codes of queries.
        counter: What its energy counter shows, of what was drawn, J.
        serves: The board is offered to plans.
        unnamed: Refused queries that healthy boards refuse, too.
    """

    name: str
    product: str = ""
    gpu_type: str = "t4"
    refused: Mapping[str, Code] = field(default_factory=dict)
    counter: Callable[[float], float] = lambda energy_j: energy_j
    serves: bool = True
    unnamed: frozenset[str] = frozenset()

    @property
    def named(self) -> frozenset[str]:
        """Queries that its condition has to name, as pynvml calls them."""
        return frozenset(each.removesuffix("_v2") for each in {*self.refused} - self.unnamed)


def _falling(energy_j: float) -> float:
    """Return a counter that shows a tenth of what was drawn in every second joule."""
    return energy_j if int(energy_j) % 2 else energy_j / 10


FLEET = (
    OddBoard(
        "GB10: memory is the host's, and no power limit",
        "NVIDIA GB10",
        refused={
            MEMORY: Code.NOT_SUPPORTED,
            DEFAULT_LIMIT: Code.NOT_SUPPORTED,
            ENFORCED_LIMIT: Code.NOT_SUPPORTED,
            MEMORY_CLOCKS: Code.NOT_SUPPORTED,
        },
    ),
    OddBoard(
        "laptop: no default power limit, no list of clocks",
        "NVIDIA GeForce RTX 4070 Laptop GPU",
        refused={DEFAULT_LIMIT: Code.NOT_SUPPORTED, MEMORY_CLOCKS: Code.NOT_SUPPORTED},
    ),
    OddBoard(
        "vGPU: neither power nor energy nor clocks",
        "GRID T4-8Q",
        refused={
            POWER: Code.NOT_SUPPORTED,
            ENERGY: Code.NOT_SUPPORTED,
            DEFAULT_LIMIT: Code.NOT_SUPPORTED,
            ENFORCED_LIMIT: Code.NOT_SUPPORTED,
            CLOCK: Code.NO_PERMISSION,
        },
        unnamed=frozenset({ENERGY}),
    ),
    OddBoard(
        "ERR!: power, clock and limit are unknown errors",
        refused={POWER: Code.UNKNOWN, CLOCK: Code.UNKNOWN, DEFAULT_LIMIT: Code.UNKNOWN},
    ),
    OddBoard(
        "ERR! altogether",
        refused=dict.fromkeys(
            (MEMORY, POWER, ENERGY, CLOCK, DEFAULT_LIMIT, ENFORCED_LIMIT, CORES), Code.UNKNOWN
        ),
    ),
    OddBoard(
        "MIG without energy or power",
        gpu_type="a100-40gb",
        refused={ENERGY: Code.NOT_SUPPORTED, POWER: Code.NOT_SUPPORTED},
        unnamed=frozenset({ENERGY}),
    ),
    OddBoard(
        "MIG whose sizes may not be read",
        gpu_type="a100-40gb",
        refused={PLACEMENTS: Code.NO_PERMISSION},
        serves=False,
    ),
    OddBoard("a counter of 32 bits that wraps each 12 J", counter=lambda energy_j: energy_j % 12.0),
    OddBoard("a counter that falls and comes back", counter=_falling),
    OddBoard("a counter that leaps", counter=lambda energy_j: 1e6 * int(energy_j)),
)


class _OddSensors(Sensors):
    """The sensors of a board whose energy counter is odd."""

    show: Callable[[float], float]

    def counter_j(self, state: Any) -> float:
        """Return what the counter shows, J."""
        return self.show(self.energy_j(state))


@contextmanager
def odd(
    monkeypatch: pytest.MonkeyPatch, faults: Mapping[int, OddBoard]
) -> Iterator[list[FaultyNvml]]:
    """Give agents that start inside the block odd boards, by index; yield their libraries."""
    started: list[FaultyNvml] = []

    def start(*arguments: Any, **options: Any) -> FaultyNvml:
        library = FaultyNvml(*arguments, **options)
        for index, board in faults.items():
            make_odd(library, index, board)
        started.append(library)
        return library

    with monkeypatch.context() as patches:
        patches.setattr(hardware, "FakeNvml", start)
        yield started


def make_odd(library: FaultyNvml, index: int, board: OddBoard) -> None:
    """Make a board of a library odd."""
    gpu = library._node.gpus[index]
    if board.product:
        gpu.table = replace(gpu.table, product_name=board.product)
    gpu.sensors.__class__ = _OddSensors
    gpu.sensors.show = board.counter  # type: ignore[attr-defined]
    for symbol, code in board.refused.items():
        library.inject(InjectedFault(code, frozenset({symbol}), gpu_uuid=gpu.uuid, times=None))
