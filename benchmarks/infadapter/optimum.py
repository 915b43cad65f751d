"""Every load up to capacity, against brute force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import timed_s
from benchmarks.infadapter.allocation import Allocator
from benchmarks.infadapter.setting import BEFORE, CORES, RESOURCE_WEIGHTS, Setting

SHOWN_RPS = (5, 20, 75, 110, 150, 200, 300)
SHOWN_WEIGHT = 0.05
TOLERANCE = 1e-9
ATTEMPTS = 3
"""Of which the fastest counts: what another process interrupted says nothing about us."""


@dataclass(frozen=True, slots=True)
class BruteForce:
    """All choices of sizes, once.

    Attributes:
        setting: The networks.
        sizes: Cores by choice and network, the most accurate first, shape (choices, networks).
        capacity_rps: The same shape.
    """

    setting: Setting
    sizes: NDArray[np.int_]
    capacity_rps: NDArray[np.float64]

    @classmethod
    def of(cls, setting: Setting) -> BruteForce:
        """Write down the choices."""
        ranked = _ranked(setting)
        choices = product(*((0, *each.capacity_rps) for each in ranked))
        sizes = np.array([each for each in choices if sum(each) <= CORES])
        capacity_rps = np.column_stack(
            [
                [each.capacity_rps.get(int(units), 0.0) for units in column]
                for each, column in zip(ranked, sizes.T, strict=True)
            ]
        )
        return cls(setting, sizes, capacity_rps)

    def best(self, load_rps: float, running: Mapping[str, int], resources: float) -> float:
        """Return the largest objective of Eq. 1 at a load."""
        ranked = _ranked(self.setting)
        before_rps = np.cumsum(self.capacity_rps, axis=1) - self.capacity_rps
        taken_rps = np.clip(load_rps - before_rps, 0.0, self.capacity_rps)
        accuracy = taken_rps @ np.array([each.accuracy for each in ranked]) / load_rps
        held = np.array([running.get(each.name, 0) for each in ranked])
        changed = (self.sizes > 0) & (self.sizes != held)
        loading_s = (changed * [each.load_s for each in ranked]).max(axis=1)
        weights = self.setting.weights(resources)
        price = weights.resources * self.sizes.sum(axis=1) / CORES + weights.loading * loading_s
        enough = self.capacity_rps.sum(axis=1) >= load_rps
        return float((accuracy - price)[enough].max())


def optimality(setting: Setting) -> list[dict[str, Any]]:
    """Return one row per weight: all whole loads up to capacity."""
    every = BruteForce.of(setting)
    return [_row(every, resources) for resources in RESOURCE_WEIGHTS]


def _row(every: BruteForce, resources: float) -> dict[str, Any]:
    setting = every.setting
    allocator = Allocator(setting.candidates, CORES, setting.weights(resources))
    loads_rps = [float(load) for load in range(1, int(allocator.capacity_rps) + 1)]
    short, took_s, brute_s = [], [], []
    for load_rps in loads_rps:
        best, other_s = timed_s(every.best, load_rps, BEFORE, resources)
        attempts = [timed_s(allocator.allocate, load_rps, BEFORE) for _ in range(ATTEMPTS)]
        short.append(best - attempts[0][0].objective)
        took_s.append(min(one_s for _, one_s in attempts))
        brute_s.append(other_s)
    above = [allocator.allocate(loads_rps[-1] + load_rps, BEFORE) for load_rps in loads_rps]
    return {
        "alpha": resources,
        "loads": len(loads_rps),
        "below_optimum": sum(each > TOLERANCE for each in short),
        "worst_shortfall": max(0.0, *short),
        "median_ms": 1e3 * float(np.median(took_s)),
        "p99_ms": 1e3 * float(np.percentile(took_s, 99)),
        "brute_force_median_ms": 1e3 * float(np.median(brute_s)),
        "capacity_rps": allocator.capacity_rps,
        "overloads_answered": sum(each.overloaded for each in above),
    }


def known_optima(setting: Setting) -> list[dict[str, Any]]:
    """Return the loads that others have published the optimum of."""
    allocator = Allocator(setting.candidates, CORES, setting.weights(SHOWN_WEIGHT))
    rows = []
    for load_rps in SHOWN_RPS:
        found = allocator.allocate(float(load_rps), BEFORE)
        rows.append(
            {
                "load_rps": load_rps,
                "cores": " ".join(f"{name}:{units}" for name, units in found.units.items()),
                "shares": " ".join(f"{name}@{share:.2f}" for name, share in found.shares.items()),
                "objective": round(found.objective, 5),
            }
        )
    return rows


def _ranked(setting: Setting) -> list[Any]:
    return sorted(setting.candidates, key=lambda each: -each.accuracy)
