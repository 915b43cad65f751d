"""A worker's slot in the ledger: its report, and the agent's grant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from services.kit.profiles.core.profile import BatchCost


@dataclass(frozen=True, slots=True)
class Slot:
    """Report of one worker.

    Attributes:
        pid: Its process; 0: none.
        slice_uuid: Where it runs.
        segment_id: What it belongs to.
        busy_since_s: When its present batch began; 0: idle.
        power_w: Modelled active power of the present batch, W. 0 on a real GPU.
        batch_energy_j: Most that the present batch may be counted for until it has ended, J.
        active_j: Modelled energy of all batches that ended, J.
        busy_s: Time of all batches that ended, s.
        idle_since_s: When its last batch ended.
        requests: Requests answered.
        batches: Batches that ended, answered or not.
        compared_s: Time of those batches that ended well and that the profile knows, s.
        profiled_s, profiled_j: Time and energy of the same batches by the profile, s and J.
        server_waiting: Requests that wait at the external server of a language model.
        server_kv_cache_ratio: Share of that server's KV cache that is in use, 0 .. 1.
    """

    pid: int = 0
    slice_uuid: str = ""
    segment_id: str = ""
    busy_since_s: float = 0.0
    power_w: float = 0.0
    batch_energy_j: float = 0.0
    active_j: float = 0.0
    busy_s: float = 0.0
    idle_since_s: float = 0.0
    requests: int = 0
    batches: int = 0
    compared_s: float = 0.0
    profiled_s: float = 0.0
    profiled_j: float = 0.0
    server_waiting: int = 0
    server_kv_cache_ratio: float = 0.0

    def energy_at(self, now_s: float) -> float:
        """Return the modelled energy up to `now_s`, the present batch's part included, J."""
        return self.active_j + self._present_j(now_s)

    def busy_at(self, now_s: float) -> float:
        """Return the busy time up to `now_s`, s."""
        return self.busy_s + self._elapsed_s(now_s)

    def power_at(self, now_s: float) -> float:
        """Return the modelled active power at `now_s`, W."""
        unfinished = self.busy_since_s and self._present_j(now_s) < self.batch_energy_j
        return self.power_w if unfinished else 0.0

    def ended(
        self, now_s: float, energy_j: float, requests: int, profiled: BatchCost | None = None
    ) -> Slot:
        """Return the slot after its present batch ended with this energy.

        Args:
            now_s: When.
            energy_j: Its modelled energy, J.
            requests: Requests that it answered.
            profiled: What the profile says of it; None: nothing.
        """
        elapsed_s = max(now_s - self.busy_since_s, 0.0) if self.busy_since_s else 0.0
        cost = profiled or BatchCost(0.0, 0.0)
        return replace(
            self,
            busy_since_s=0.0,
            power_w=0.0,
            batch_energy_j=0.0,
            active_j=self.active_j + max(energy_j, 0.0),
            busy_s=self.busy_s + elapsed_s,
            idle_since_s=now_s,
            requests=self.requests + requests,
            batches=self.batches + 1,
            compared_s=self.compared_s + (elapsed_s if profiled else 0.0),
            profiled_s=self.profiled_s + cost.latency_s,
            profiled_j=self.profiled_j + cost.energy_j,
        )

    def _elapsed_s(self, now_s: float) -> float:
        return max(now_s - self.busy_since_s, 0.0) if self.busy_since_s else 0.0

    def _present_j(self, now_s: float) -> float:
        return min(self.power_w * self._elapsed_s(now_s), self.batch_energy_j)


EMPTY: Final = Slot()
"""A slot that no worker ever had."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Power figures that the agent writes for one worker.

    Attributes:
        busy_power_w: Active power attributed to it while it is busy, W; 0: not known yet. Where
            the device is simulated, the profile says it.
        idle_power_w: Its share of the GPU's idle power, W.
        method: How busy_power_w was found: "counter", "integrated", "rapl" or "model".
    """

    busy_power_w: float = 0.0
    idle_power_w: float = 0.0
    method: str = "model"
