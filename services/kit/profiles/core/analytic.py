"""An analytic profile: speed and power of a network from its arithmetic, on any slice.

A batch waits for its kernels to be launched, or keeps the SMs of the slice busy, whichever takes
longer; p processes share the SMs, so that their SM times add up:

    sm(b)   = kernel + item * (b + RAMP) / SMs           SM time of a batch
    latency = max(launch, sm(b) + host, p * sm(b))       every process busy
    power   = SM share * (limit - idle) * (FLOOR + (1 - FLOOR) * activity)

The parameters are Inception-V3's (5.7 GMAC) on each GPU type, fitted to what two papers publish:
ParvaGPU (SC'24) III-B for time on the A100, CARBONDIS (CCGrid'25) Table III for the P4, the T4 and
for power. `docs/measurements/analytic-profile.md` shows the errors. Times and energy scale with
the multiply-accumulates; in ParvaGPU's tables that holds within families (ResNet-50, -101, -152:
1.2 ms of launching and 0.5 ms x GPC of SM time per GMAC), not between them.
"""

from dataclasses import dataclass
from typing import Literal

from services.kit.profiles.core import cpu
from services.kit.profiles.core.clock_curve import curve_of
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
class Card:
    """Inception-V3 on one GPU type.

    Attributes:
        speed: Speed of an SM; an A100's is 1.
        launch_ms: Time to launch one batch's kernels, ms.
        host_ms: Time per batch in which the SMs do nothing for it, ms.
        kernel_ms: SM time per batch that neither batch nor slice size changes, ms.
        kernel_activity: Activity of the SMs in that time, 0..1.
        item_activity: Activity while items are computed; above 1: the power limit binds.
    """

    speed: float
    launch_ms: float = 9.42
    host_ms: float = 2.08
    kernel_ms: float = 0.92
    kernel_activity: float = 0.0
    item_activity: float = 1.54


# ParvaGPU III-B (A100, time); CARBONDIS Table III (A100, power; P4 and T4, both). Assumed: the
# A100's behaviour with SMs as fast as data-sheet dense FP16 TFLOPS say, for A30 (165), V100 (125),
# H100 and H200 (989), against 312 for the A100.
CARDS = {
    "a100": Card(speed=1.0),
    "a30": Card(speed=(165 / 56) / (312 / 108)),
    "v100": Card(speed=(125 / 80) / (312 / 108)),
    "h100": Card(speed=(989 / 132) / (312 / 108)),
    "h200": Card(speed=(989 / 132) / (312 / 108)),
    "p4": Card(0.304, launch_ms=0.0, host_ms=0.0, kernel_ms=9.9, kernel_activity=1.0),
    "t4": Card(0.160, launch_ms=0.0, host_ms=0.0, kernel_ms=4.7, kernel_activity=1.0),
}
"""Cards by GPU type without its memory size: "a100" stands for a100-40gb and a100-80gb."""


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
        card = CARDS.get(_family(shape.gpu))
        if card is None or not self._fits(shape, batch_size, processes):
            return None
        curve = curve_of(shape.gpu)
        longer = curve.stretch(self.clock_sensitivity, clock_ratio)
        sm_ms = longer * self._sm_ms(card, shape, batch_size)
        scale = self.gmacs_per_item / REFERENCE_GMACS
        latency_ms = max(
            scale * card.launch_ms, sm_ms + scale * card.host_ms, float(processes) * sm_ms
        )
        power_w = self.power_w(shape, batch_size, processes, latency_ms * 1e-3 / longer)
        energy_j = power_w * curve.power_ratio(clock_ratio) * latency_ms * 1e-3 / processes
        return BatchCost(latency_s=latency_ms * 1e-3, energy_j=energy_j)

    def power_w(
        self, shape: SliceShape, batch_size: int, processes: int, latency_s: float
    ) -> float:
        """Return the active power of a slice at the highest clock, all processes busy, W.

        Args:
            shape: The slice; of a GPU type that CARDS does not know, an A100's SMs are assumed.
            batch_size: Items per batch.
            processes: Processes on the slice.
            latency_s: Time of one batch, modelled or measured, s.
        """
        if shape.core_gmacs_per_s:
            return cpu.power_w(shape)
        card = CARDS.get(_family(shape.gpu), CARDS["a100"])
        items_ms = card.item_activity * ITEM_SM_MS * batch_size / (shape.sm_count * card.speed)
        kernels_ms = card.kernel_activity * card.kernel_ms
        active_ms = self.gmacs_per_item / REFERENCE_GMACS * (kernels_ms + items_ms)
        activity = min(1.0, processes * active_ms * 1e-3 / latency_s)
        share = shape.sm_count / shape.gpu_sm_count
        range_w = shape.max_power_w - shape.idle_power_w
        return share * range_w * (FLOOR_ACTIVITY + (1.0 - FLOOR_ACTIVITY) * activity)

    def _on_cores(self, shape: SliceShape, batch_size: int, processes: int) -> BatchCost | None:
        if not self._fits(shape, batch_size, processes):
            return None
        return cpu.batch(shape, self.gmacs_per_item * batch_size, processes)

    def _fits(self, shape: SliceShape, batch_size: int, processes: int) -> bool:
        memory_mib = processes * (self.memory_mib + (batch_size - 1) * self.memory_mib_per_item)
        return memory_mib * BYTES_PER_MIB <= shape.memory_bytes

    def _sm_ms(self, card: Card, shape: SliceShape, batch_size: int) -> float:
        items_ms = ITEM_SM_MS * (batch_size + RAMP_ITEMS) / (shape.sm_count * card.speed)
        return self.gmacs_per_item / REFERENCE_GMACS * (card.kernel_ms + items_ms)


def _family(gpu: str) -> str:
    return gpu.partition("-")[0]
