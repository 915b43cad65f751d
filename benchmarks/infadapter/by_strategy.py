"""The planner's own strategy `infadapter` on the paper's 20 cores.

It has what a machine of 20 cores is cut into: slices of 2, 4, 8, 16 and 20 cores, several of them
for a network that needs a size in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.infadapter.allocation import Allocation
from benchmarks.infadapter.setting import BEFORE, CORES, Setting
from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core import cpu_geometry
from services.kit.config import InfAdapter as Weights
from services.kit.config import Objective
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.model import (
    Configuration,
    Gpu,
    GpuType,
    Model,
    Pool,
    Problem,
    Segment,
    SegmentKind,
    Variant,
)
from services.planner.core.placement.placement import place
from services.planner.core.strategies import REGISTRY

TIME_LIMIT_S = 60.0


@dataclass(slots=True)
class StrategyAllocator:
    """Allocates by the strategy, and remembers what runs.

    Attributes:
        setting: The networks.
        resources: Weight of resources in Eq. 1.
        running: Segments of the last answer.
    """

    setting: Setting
    resources: float
    running: tuple[Segment, ...] = field(init=False)
    _pool: Pool = field(init=False)
    _kinds: dict[tuple[str, int], SegmentKind] = field(init=False)

    def __post_init__(self) -> None:
        cores = cpu_geometry.geometry(CORES, CORES * 2**30)
        self._pool = Pool(GpuType("cpu", cores, CORES, 1.0, 1.0, 2.0), "Z", 1.0, 200.0)
        self._kinds = {
            (each.name, kind.compute_slices): self._kind(each.name, each.accuracy, kind.name, rps)
            for each in self.setting.candidates
            for kind in cores.kinds
            if (rps := each.capacity_rps.get(kind.compute_slices, 0.0)) > 0
        }
        self.running = tuple(
            Segment(name, self._kinds[name, size], "node", "CPU", Placement(f"{size}c", 0), 1.0)
            for name, size in BEFORE.items()
        )

    def _kind(self, name: str, accuracy: float, size: str, rps: float) -> SegmentKind:
        return SegmentKind("m", name, self._pool, size, 1, 1, 0.01, rps, 1.0, accuracy)

    def allocate(self, load_rps: float, _: Mapping[str, int]) -> Allocation:
        """Return the strategy's answer for a load."""
        problem = self._problem(load_rps)
        found = REGISTRY["infadapter"](problem)
        self.running = place(problem, found, iter(map(str, range(CORES))).__next__)
        return _allocation(found, load_rps)

    def _problem(self, load_rps: float) -> Problem:
        # The strategy's accuracy is relative to the best network's, and so are its prices.
        weights, best = self.setting.weights(self.resources), self.setting.best_accuracy
        objective = Objective(
            latency_rule="batch",
            max_utilisation=1.0,
            infadapter=Weights(resources=weights.resources / best, loading=weights.loading / best),
        )
        variants = tuple(
            Variant(each.name, each.accuracy, AnalyticProfile(1.0), each.load_s)
            for each in self.setting.candidates
        )
        return Problem(
            gpus=(Gpu("CPU", "node", self._pool, tuple(each.placement for each in self.running)),),
            models=(Model("m", 1.0, 99.0, load_rps, variants),),
            catalog=tuple(self._kinds.values()),
            objective=objective,
            running=self.running,
            time_limit_s=TIME_LIMIT_S,
        )


def _allocation(found: Configuration, load_rps: float) -> Allocation:
    sizes: dict[str, tuple[int, ...]] = {}
    served: dict[str, float] = {}
    for kind, count in sorted(found.segments.items(), key=lambda each: -each[0].accuracy):
        size = kind.pool.type.geometry.kind(kind.profile).compute_slices
        sizes[kind.variant] = (*sizes.get(kind.variant, ()), *[size] * count)
        served[kind.variant] = served.get(kind.variant, 0.0) + found.load_rps.get(kind, 0.0)
    return Allocation(
        units={name: sum(each) for name, each in sizes.items()},
        load_rps=served,
        objective=0.0,
        unserved_rps=max(0.0, load_rps - sum(served.values())),
        parts={name: tuple(sorted(each)) for name, each in sizes.items()},
    )
