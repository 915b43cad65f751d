"""One process's place on the GPU: runs batches one at a time and keeps its ledger slot true.

On the simulated device the real computation runs on the CPU, and the batch then takes as long, and
costs as much, as the profile says. A computation slower than the profile is recorded as it was: its
real time, at the profile's power.
"""

from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from services.gpuagent.core.worker_slot import Grant, Slot
from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.shared_memory.group_counters import Counters
from services.gpuagent.worker.core.tokens import binding_latency_s
from services.kit.clock import Clock
from services.kit.profiles.core.profile import BatchCost
from services.kit.request_cost import Cost, Usage

Outputs = TypeVar("Outputs")

_UNMETERED = BatchCost(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch to run. Attributes: items, requests (their number), arrived_s (of the newest)."""

    items: int
    requests: int
    arrived_s: float


@dataclass(frozen=True, slots=True)
class Ran(Generic[Outputs]):
    """A batch that ended.

    Attributes:
        outputs: Result of the computation.
        started_s: When, on the clock that the device was given.
        compute_s: Time it was executing, s.
        energy_j: Active energy, J.
        idle_energy_j: Idle energy from the end of the batch before to its own, J.
        method: How energy_j was obtained.
    """

    outputs: Outputs
    started_s: float
    compute_s: float
    energy_j: float
    idle_energy_j: float
    method: str

    def cost(
        self, arrived_s: float, items: int = 1, batch_size: int = 1, usage: Usage | None = None
    ) -> Cost:
        """Return the cost of a request of the batch; its part of the energy is that of its items.

        Args:
            arrived_s: When the request came.
            items: Of the request.
            batch_size: Items of the batch.
            usage: Tokens, where the model generates text.
        """
        share, queue_s = items / batch_size, max(self.started_s - arrived_s, 0.0)
        energy_j, idle_energy_j = self.energy_j * share, self.idle_energy_j * share
        how = (self.method, queue_s, self.compute_s)
        return Cost(energy_j, idle_energy_j, *how, batch_size, items, usage)


class WorkerDevice:
    """The GPU as one worker process sees it.

    Args:
        spec: Who and where the process is.
        counters: The GPU's ledger.
        clock: CLOCK_MONOTONIC and sleep.
    """

    def __init__(self, spec: WorkerSpec, counters: Counters, clock: Clock) -> None:
        self._spec = spec
        self._counters = counters
        self._clock = clock
        self._slot = Slot()
        self._latencies = counters.latencies(spec.slot)

    def claim(self, pid: int) -> None:
        """Take the slot; its counters go on from where the process before left them."""
        self._counters.settle(self._spec.slot)
        self._write(
            replace(
                self._counters.slot(self._spec.slot),
                pid=pid,
                slice_uuid=self._spec.slice_uuid,
                segment_id=self._spec.segment_id,
                idle_since_s=self._clock.monotonic(),
            )
        )

    def release(self) -> None:
        """Give the slot back."""
        self._counters.settle(self._spec.slot)

    def answered(self, latency_s: float, usage: Usage | None = None) -> None:
        """Count a request by its latency; a text by whatever used most of its objective.

        Args:
            latency_s: From its arrival at the router to its end here, s.
            usage: A text's tokens.
        """
        if self._spec.slo and usage:
            latency_s = binding_latency_s(self._spec.slo, latency_s, usage)
        self._latencies.add(latency_s)

    async def run(self, batch: Batch, computing: Awaitable[Outputs], now_s: float) -> Ran[Outputs]:
        """Run one batch; whatever `computing` raises leaves the slot idle and the time counted."""
        before = self._slot
        # Back to back, a batch starts when the one before ended: the time that this process took
        # to wake up and answer is no time of the GPU.
        ready_s = max(before.idle_since_s, batch.arrived_s)
        started_s = min(now_s, ready_s)
        profiled = None if self._spec.costs is None else self._profiled(batch)
        charged = profiled if self._spec.charged else None
        self._begin(charged, started_s)
        cost = charged or _UNMETERED
        grant = self._counters.grant(self._spec.slot)
        power_w, method = grant.busy_power_w, grant.method
        if profiled is not None:
            power_w, method = self._tariff(profiled, grant)
        try:
            outputs = await computing
        except BaseException:
            now_s = self._clock.monotonic()
            self._write(self._slot.ended(now_s, power_w * (now_s - started_s), 0))
            raise
        computed_s = self._clock.monotonic()
        late_s = max(computed_s - (started_s + cost.latency_s), 0.0)
        ended_s = started_s + cost.latency_s + late_s
        energy_j = cost.energy_j + power_w * late_s
        try:
            if ended_s > computed_s:
                await self._clock.sleep(ended_s - computed_s)
        finally:
            known = profiled if batch.items <= self._spec.batch_size else None
            self._write(self._slot.ended(ended_s, energy_j, batch.requests, known))
        idle_j = grant.idle_power_w * max(ended_s - before.idle_since_s, 0.0)
        compute_s = cost.latency_s + late_s
        return Ran(outputs, started_s, compute_s, energy_j, idle_j, method)

    def _profiled(self, batch: Batch) -> BatchCost | None:
        """Return what the profile says of a batch that begins now; None: nothing."""
        if self._spec.costs is None:
            return None
        others = (number for number in self._spec.siblings if number != self._spec.slot)
        busy = 1 + self._counters.busy_among(others)
        return self._spec.costs.at(batch.items, busy, self._counters.clock_ratio)

    def _begin(self, charged: BatchCost | None, started_s: float) -> None:
        """Mark the slot busy.

        Args:
            charged: What the device will charge for the batch; None: nothing.
            started_s: When it begins.
        """
        self._write(
            replace(
                self._slot,
                busy_since_s=started_s,
                power_w=charged.power_w if charged else 0.0,
                batch_energy_j=charged.energy_j if charged else 0.0,
            )
        )

    def _tariff(self, profiled: BatchCost, grant: Grant) -> tuple[float, str]:
        """Return the active power that a batch is counted at, W, and how that was found.

        Where nothing was measured yet, the profile says it.
        """
        if self._spec.charged or not grant.busy_power_w:
            return profiled.power_w, "model"
        return grant.busy_power_w, grant.method

    def _write(self, slot: Slot) -> None:
        self._slot = slot
        self._counters.write(self._spec.slot, slot)
