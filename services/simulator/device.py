"""A simulated GPU in virtual time: its slices, its clock, and its energy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Node
from services.kit.errors import FailedPrecondition
from services.kit.hardware import gpu_types
from services.planner.core.model import GpuType


@dataclass(slots=True)
class Ledger:
    """A worker's energy account, as the live one's (`services.gpuagent.core.worker_slot`).

    The live one is frozen, which would cost more than all else in a batch.

    Attributes:
        requests: Requests answered.
        batches: Batches that ended.
        active_j: Energy of all batches that ended, J.
        busy_s: Time of all batches that ended, s.
        busy: Whether a batch runs.
    """

    requests: int = 0
    batches: int = 0
    active_j: float = 0.0
    busy_s: float = 0.0
    busy: bool = False
    _since_s: float = 0.0
    _power_w: float = 0.0
    _batch_j: float = 0.0

    def begin(self, now_s: float, power_w: float, energy_j: float) -> None:
        """Begin a batch of this power, W, and energy, J."""
        self.busy, self._since_s = True, now_s
        self._power_w, self._batch_j = power_w, energy_j

    def end(self, now_s: float, requests: int) -> None:
        """End the batch, which answered a number of requests."""
        self.busy_s += now_s - self._since_s
        self.active_j += self._batch_j
        self.requests += requests
        self.batches += 1
        self.busy = False

    def energy_at(self, now_s: float) -> float:
        """Return the energy up to `now_s`, including part of the current batch, J."""
        if not self.busy:
            return self.active_j
        return self.active_j + min(self._power_w * (now_s - self._since_s), self._batch_j)


class WorkerProcess(Protocol):
    """A worker as its GPU sees it."""

    @property
    def model(self) -> str:
        """Name of the model that it serves."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Its energy account."""
        ...

    def clock_changes(self) -> None:
        """Prepare for a change of the GPU's clock."""
        ...


@dataclass(slots=True, eq=False)
class Device:
    """One GPU.

    Attributes:
        uuid: UUID of the GPU.
        node: Node of the GPU.
        type: GPU type.
        parks: Whether it draws no power while it has no segment.
        slices: Slices that exist.
        clock_mhz: SM clock that it is locked at, MHz; 0: not locked.
    """

    uuid: str
    node: str
    type: GpuType
    parks: bool = False
    slices: frozenset[Placement] = frozenset()
    clock_mhz: int = 0
    _workers: dict[WorkerProcess, float] = field(default_factory=dict)
    """Part of the energy of each worker that is drawn here."""
    _active_j: dict[str, float] = field(default_factory=dict)
    _used_s: float = 0.0
    _used_since_s: float = 0.0

    @property
    def clock_ratio(self) -> float:
        """SM clock over the GPU's highest."""
        highest_mhz = self.type.max_clock_mhz
        return self.clock_mhz / highest_mhz if self.clock_mhz and highest_mhz else 1.0

    def lock_clock(self, clock_mhz: int) -> None:
        """Lock the SM clock, MHz; 0: unlock it."""
        for worker in self._workers:
            worker.clock_changes()
        self.clock_mhz = clock_mhz

    def create(self, placement: Placement) -> None:
        """Create a slice.

        Raises:
            FailedPrecondition: NVIDIA's rules forbid it.
        """
        problem = self.type.geometry.problem((*self.slices, placement))
        if problem:
            raise FailedPrecondition(f"{self.uuid}: {problem}")
        self.slices |= {placement}

    def destroy(self, placement: Placement) -> None:
        """Destroy a slice."""
        self.slices -= {placement}

    def join(self, workers: Iterable[WorkerProcess], now_s: float, gpus: int = 1) -> None:
        """Add workers at `now_s` of virtual time, which hold so many GPUs and load each equally."""
        if not self._workers:
            self._used_since_s = now_s
        self._workers |= dict.fromkeys(workers, 1 / gpus)

    def leave(self, workers: Iterable[WorkerProcess], now_s: float) -> None:
        """Remove workers; their use stays in the account.

        Args:
            workers: The workers; they run no batch.
            now_s: Virtual time, s.
        """
        for worker in workers:
            used_j = self._workers.pop(worker) * worker.ledger.active_j
            self._active_j[worker.model] = self._active_j.get(worker.model, 0.0) + used_j
        if not self._workers:
            self._used_s += now_s - self._used_since_s

    def idle_j(self, now_s: float) -> float:
        """Return the energy without computation up to `now_s` of virtual time, J."""
        used_s = self._used_s + (now_s - self._used_since_s if self._workers else 0.0)
        powered_s = used_s if self.parks else now_s
        return powered_s * self.type.idle_power_w + used_s * self.type.use_power_w

    def active_j(self, request_time_s: float) -> dict[str, float]:
        """Return the active energy by model, including part of running batches, J.

        Args:
            request_time_s: Requests' time, s (`services.simulator.timeline`).
        """
        used_j = dict(self._active_j)
        for worker, part in self._workers.items():
            here_j = part * worker.ledger.energy_at(request_time_s)
            used_j[worker.model] = used_j.get(worker.model, 0.0) + here_j
        return used_j


def types_together(nodes: Iterable[Node]) -> dict[GpuType, int]:
    """Return the GPU types of simulated nodes, and how many of each are on one node at most."""
    found: dict[GpuType, int] = {}
    for node in nodes:
        for name, count in sorted(Counter(node.simulated).items()):
            kind = gpu_type(name, whole=node.allow_mig_mode is False)
            found[kind] = max(count, found.get(kind, 0))
    return found


@lru_cache
def gpu_type(name: str, *, whole: bool = False) -> GpuType:
    """Return a GPU type as a simulated node reports it, in MIG mode or as a whole.

    Raises:
        NotFound: There is none.
    """
    table = gpu_types.load(name)
    return GpuType(
        name=table.name,
        geometry=table.uncut if whole else table.offered,
        sm_count=table.sm_count,
        idle_power_w=table.idle_power_w,
        context_power_w=table.context_power_w,
        max_power_w=table.max_power_w,
        max_clock_mhz=table.max_clock_mhz if table.clock_lock else 0,
        performance=table.performance,
    )
