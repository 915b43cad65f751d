"""Power-aware placement of partitions on the devices of a group (mu-Serve, ATC'24, Algorithm 2).

Corrected where the printed algorithm cannot do what its text says:
- It starts from a score of infinity and keeps what is greater, so that it never finds a device;
  here the best similarity wins.
- It starts from no bins; here an empty device counts as a bin.
- It counts partitions of a model against CT; here devices, and a model at its limit may still use
  those that it has.
- It sorts within a model; here all partitions, as section 3.2 says, the most sensitive first.
- It looks at memory only; here a device's time, too, else all that is sensitive ends on one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.muserve.planning.model import LIMITS, TINY, Demand, Device, Limits, Placement
from services.planner.core.placement.power_aware import fitting_score


@dataclass(slots=True)
class _Bin:
    """A device that fills. Attributes: device; what is on it."""

    device: Device
    held: list[Demand] = field(default_factory=list)

    def takes(self, demand: Demand, limits: Limits) -> bool:
        """Return whether memory and time are left for one more."""
        memory_bytes = sum(each.partition.memory_bytes for each in self.held)
        load = sum(each.load for each in self.held)
        return (
            memory_bytes + demand.partition.memory_bytes <= self.device.memory_bytes
            and load + demand.load <= limits.most_load + TINY
        )

    def score(self, demand: Demand) -> tuple[float, float]:
        """Return how well one more suits it, and how much time it has left: larger is better."""
        others = ((each.partition.sensitivity, each.partition.latency_s) for each in self.held)
        load = sum(each.load for each in self.held)
        return fitting_score(demand.partition.sensitivity, others), -load


def place(
    devices: Sequence[Device], demands: Iterable[Demand], limits: Limits = LIMITS
) -> Placement | None:
    """Return which device each partition goes to; None: the greedy way leaves one without.

    Args:
        devices: Of one group.
        demands: Partitions of all its models.
        limits: Limits of the placement.
    """
    bins = [_Bin(device) for device in devices]
    used: dict[str, list[_Bin]] = {}
    for demand in sorted(demands, key=_order):
        mine = used.setdefault(demand.partition.model, [])
        open_to = mine if len(mine) >= limits.most_devices else bins
        feasible = [each for each in open_to if each.takes(demand, limits)]
        if not feasible:
            return None
        best = max(feasible, key=lambda each: each.score(demand))
        best.held.append(demand)
        if best not in mine:
            mine.append(best)
    return {demand: each.device for each in bins for demand in each.held}


def _order(demand: Demand) -> tuple[float, int, str, int]:
    partition = demand.partition
    return -partition.sensitivity, -partition.memory_bytes, partition.model, partition.index
