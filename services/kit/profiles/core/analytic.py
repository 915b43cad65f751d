"""An analytic profile: speed and power of a network from its arithmetic, on any slice.

A batch waits for its kernels to be launched, or keeps the SMs of the slice busy, whichever takes
longer; p processes share the SMs, so that their SM times add up:

    sm(b)   = kernel + item * (b + RAMP) / SMs           SM time of a batch
    latency = max(launch, sm(b) + host, p * sm(b))       every process busy
    power   = SM share * (limit - context) * (FLOOR + (1 - FLOOR) * activity)

The parameters are Inception-V3's (5.7 GMAC) on each GPU type (`services/kit/hardware/types`), for
the A100, the P4 and the T4 fitted to what two papers publish; others are an A100 with SMs as fast
as their FP16 peak says. `docs/measurements/analytic-profile.md` shows the errors. Times and
energy scale with the multiply-accumulates; in ParvaGPU's tables that holds within families
(ResNet-50, -101, -152: 1.2 ms of launching and 0.5 ms x GPC of SM time per GMAC), not between them.
"""

from dataclasses import dataclass
from typing import Literal

from services.kit.hardware import gpu_types
from services.kit.profiles.core import cpu
from services.kit.profiles.core.profile import BatchCost, SliceShape
from services.kit.units import BYTES_PER_MIB

REFERENCE_GMACS = 5.7
"""Inception-V3, 299 x 299."""

RAMP_ITEMS = 1.09
"""SM time that a batch loses while its kernels fill and drain the SMs, in items."""

ITEM_SM_MS = 22.5
"""SM time of one item on one SM of an A100, ms."""

FLOOR_ACTIVITY = 0.01
"""Share of a slice's active power while it waits for kernel launches."""


@dataclass(frozen=True, slots=True)
class AnalyticProfile:
    """The model for one network.

    Attributes:
        gmacs_per_item: Multiply-accumulates per item, 1e9.
        memory_mib: Memory of one process at batch size 1, MiB.
        memory_mib_per_item: Memory each further item takes, MiB.
        clock_sensitivity: How its time on SMs follows their clock, 0 (not at all) .. 1.
    """

    gmacs_per_item: float
    memory_mib: float = 1024.0
    memory_mib_per_item: float = 32.0
    clock_sensitivity: float = 1.0

    @property
    def method(self) -> Literal["model"]:
        """Origin of the numbers: modelled."""
        return "model"

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        """Return the cost of one batch; see `Profile`. None: out of memory, or unknown GPU."""
        if shape.core_gmacs_per_s:
            return self._on_cores(shape, batch_size, processes)
        if shape.performance is None or not self._fits(shape, batch_size, processes):
            return None
        table = gpu_types.load(shape.performance.like)
        curve, factors = table.clock_curve, table.analytic
        longer = curve.stretch(self.clock_sensitivity, clock_ratio)
        scale = self.gmacs_per_item / REFERENCE_GMACS
        items_ms = ITEM_SM_MS * (batch_size + RAMP_ITEMS) / _speed(shape)
        sm_ms = longer * scale * (factors.kernel_ms + items_ms)
        latency_ms = max(
            scale * factors.launch_ms, sm_ms + scale * factors.host_ms, float(processes) * sm_ms
        )
        power_w = self.power_w(shape, batch_size, processes, latency_ms * 1e-3 / longer)
        energy_j = power_w * curve.power_ratio(clock_ratio) * latency_ms * 1e-3 / processes
        return BatchCost(latency_s=latency_ms * 1e-3, energy_j=energy_j)

    def power_w(
        self, shape: SliceShape, batch_size: int, processes: int, latency_s: float
    ) -> float:
        """Return the active power of a slice at the highest clock, all processes busy, W.

        Args:
            shape: The slice; of a GPU type of which nothing is known, an A100's SMs are assumed.
            batch_size: Items per batch.
            processes: Processes on the slice.
            latency_s: Time of one batch, modelled or measured, s.
        """
        if shape.core_gmacs_per_s:
            return cpu.power_w(shape)
        known = shape.performance
        factors = gpu_types.load(known.like if known else gpu_types.REFERENCE).analytic
        items_ms = factors.item_activity * ITEM_SM_MS * batch_size / _speed(shape)
        kernels_ms = factors.kernel_activity * factors.kernel_ms
        active_ms = self.gmacs_per_item / REFERENCE_GMACS * (kernels_ms + items_ms)
        activity = min(1.0, processes * active_ms * 1e-3 / latency_s)
        share = shape.sm_count / shape.gpu_sm_count
        range_w = shape.max_power_w - shape.context_power_w
        return share * range_w * (FLOOR_ACTIVITY + (1.0 - FLOOR_ACTIVITY) * activity)

    def _on_cores(self, shape: SliceShape, batch_size: int, processes: int) -> BatchCost | None:
        if not self._fits(shape, batch_size, processes):
            return None
        return cpu.batch(shape, self.gmacs_per_item * batch_size, processes)

    def _fits(self, shape: SliceShape, batch_size: int, processes: int) -> bool:
        memory_mib = processes * (self.memory_mib + (batch_size - 1) * self.memory_mib_per_item)
        return memory_mib * BYTES_PER_MIB <= shape.memory_bytes


def _speed(shape: SliceShape) -> float:
    """Return the speed of a slice, in an A100's SMs.

    Boards of a type differ from its table: an SM is as fast as their peak says.
    """
    if shape.performance is None:
        return shape.sm_count
    table = gpu_types.load(shape.performance.like)
    per_sm = shape.performance.fp16_tflops / shape.gpu_sm_count
    return shape.sm_count * table.analytic.speed * per_sm / table.fp16_tflops_per_sm
