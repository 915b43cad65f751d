"""The setting: one network on a whole simulated V100."""

from dataclasses import dataclass

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from services.gpuagent.core.batch_costs import Costs
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.worker_config import shape_of, tabulate
from services.kit.config import Node
from services.kit.hardware.gpu_types import load
from services.kit.mig import WHOLE
from services.kit.profiles.core.analytic import AnalyticProfile

GPU = "v100"
GMACS_PER_ITEM = 60.0
BATCH_SIZE, PROCESSES = 16, 2
LARGE = (32, 4)
"""Batch size and processes of a segment that gains more from waiting."""

PERCENTILE = 99.0
SLO_S = 0.6
"""Three times what a full batch takes at the highest clock."""

FLOOR = Node.model_fields["clock_floor"].default

TABLE = load(GPU)


@dataclass(frozen=True, slots=True)
class Served:
    """The segment.

    Attributes:
        batch_size, processes: Of the segment.
        costs: Cost of a batch, at any clock.
        full_s: Time of a full batch at the highest clock, s.
    """

    batch_size: int
    processes: int
    costs: Costs
    full_s: float

    @property
    def capacity_rps(self) -> float:
        """Return the load that the highest clock can serve in full batches, req/s."""
        return self.processes * self.batch_size / self.full_s


def served(batch_size: int = BATCH_SIZE, processes: int = PROCESSES) -> Served:
    """Return a segment on the whole GPU."""
    spec = SegmentSpec("s-1", "m", "v", batch_size, processes, "GPU-1", Placement(WHOLE, 0))
    gpu = GpuInfo("GPU-1", 0, TABLE, False, ((spec.placement, "GPU-1"),), TABLE.max_clock_mhz)
    costs = tabulate(AnalyticProfile(GMACS_PER_ITEM), shape_of(gpu, WHOLE), spec)
    full_s = costs.at(batch_size, processes, 1.0).latency_s
    return Served(batch_size, processes, costs, full_s)
