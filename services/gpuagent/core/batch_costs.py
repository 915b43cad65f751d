"""Cost of a batch on the simulated device, by its size, the busy processes and the clock."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from services.kit.errors import InvalidArgument
from services.kit.profiles.core.profile import BatchCost


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Costs at one clock.

    Attributes:
        clock_ratio: SM clock over the GPU's highest, 0 < ratio <= 1.
        latency_s: Shape (batch sizes 1.., busy processes 1..), s.
        energy_j: Same shape, J.
    """

    clock_ratio: float
    latency_s: tuple[tuple[float, ...], ...]
    energy_j: tuple[tuple[float, ...], ...]

    def at(self, items: int, processes: int) -> BatchCost:
        """Return the cost of a batch; one larger than the table costs in proportion."""
        row = min(items, len(self.latency_s)) - 1
        column = min(processes, len(self.latency_s[row])) - 1
        scale = items / (row + 1)
        return BatchCost(self.latency_s[row][column] * scale, self.energy_j[row][column] * scale)

    def scaled(self, factor: float) -> CostCurve:
        """Return the curve of a GPU on which every batch costs `factor` times as much."""
        return CostCurve(
            self.clock_ratio, _scaled(self.latency_s, factor), _scaled(self.energy_j, factor)
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs at several clocks, in order of clock; in between, linear."""

    curves: tuple[CostCurve, ...]

    def __post_init__(self) -> None:
        ratios = [curve.clock_ratio for curve in self.curves]
        if not ratios or ratios != sorted(set(ratios)):
            raise InvalidArgument(f"curves must be in order of clock_ratio, got {ratios}")

    def scaled(self, factor: float) -> Costs:
        """Return the costs where every batch takes `factor` times as long, and as much energy."""
        return Costs(tuple(curve.scaled(factor) for curve in self.curves))

    def at(self, items: int, processes: int, clock_ratio: float) -> BatchCost:
        """Return the cost of one batch.

        Args:
            items: Items in the batch, >= 1.
            processes: Processes that run a batch on the slice now, this one included, >= 1.
            clock_ratio: SM clock over the GPU's highest. Outside the curves: the nearest.
        """
        right = bisect_left(self.curves, clock_ratio, key=lambda curve: curve.clock_ratio)
        right = min(right, len(self.curves) - 1)
        below, above = self.curves[max(right - 1, 0)], self.curves[right]
        if right == 0 or clock_ratio >= above.clock_ratio:
            return above.at(items, processes)
        part = (clock_ratio - below.clock_ratio) / (above.clock_ratio - below.clock_ratio)
        one, other = below.at(items, processes), above.at(items, processes)
        return BatchCost(
            one.latency_s + part * (other.latency_s - one.latency_s),
            one.energy_j + part * (other.energy_j - one.energy_j),
        )


def _scaled(table: tuple[tuple[float, ...], ...], factor: float) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(factor * value for value in row) for row in table)
