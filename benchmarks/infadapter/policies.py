"""InfAdapter and its baselines: which variants run next, on how many cores."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from benchmarks.infadapter.allocation import Allocation, Allocator, Candidate
from benchmarks.infadapter.by_strategy import StrategyAllocator
from benchmarks.infadapter.setting import CORES, Setting

PATIENCE = 4
"""Decisions for which a smaller load must last before anything shrinks (the authors' code)."""

HALF_LIFE_S = 86_400.0
PERCENTILE = 0.9
SAFETY = 1.15
"""Kubernetes' Vertical Pod Autoscaler: 90th percentile of a histogram that halves every day, and
15 % on top; the lower bound is dropped, as in the paper."""

BUCKET_CORES = 0.1


@dataclass(frozen=True, slots=True)
class Outlook:
    """Knowledge when a decision is due.

    Attributes:
        since_s: Time since the decision before, s.
        mean_rps: Load in that time.
        bound_rps: Our forecast's upper bound.
        margin_rps: Busiest second of the last minute, and 10 %.
    """

    since_s: float
    mean_rps: float
    bound_rps: float
    margin_rps: float


class Policy(Protocol):
    """Decides what runs."""

    def decide(self, outlook: Outlook, running: Allocation) -> Allocation:
        """Return what shall run; `running` itself where nothing changes."""
        ...


@dataclass(slots=True)
class Adaptive:
    """Provides for a load to come: more at once, less only after PATIENCE decisions.

    Attributes:
        foresee: Returns the load to provide for, req/s.
        allocate: Returns the allocation that serves it, given the one that runs.
    """

    foresee: Callable[[Outlook], float]
    allocate: Callable[[float, Mapping[str, int]], Allocation]
    _provided_rps: float = 0.0
    _waited: int = 0

    def decide(self, outlook: Outlook, running: Allocation) -> Allocation:
        """Follow the load."""
        load_rps = self.foresee(outlook)
        if load_rps <= self._provided_rps and self._waited < PATIENCE:
            self._waited += 1
            return running
        self._provided_rps, self._waited = load_rps, 0
        return self.allocate(load_rps, running.units)


@dataclass(slots=True)
class VerticalPodAutoscaler:
    """Sizes one network by its past use, without a forecast.

    Attributes:
        candidate: The network.
        rps_per_core: Load that a core serves, req/s.
    """

    candidate: Candidate
    rps_per_core: float
    _weights: dict[int, float] = field(default_factory=dict)

    def decide(self, outlook: Outlook, running: Allocation) -> Allocation:
        """Follow the usage, which cannot be more than what there is."""
        held = running.units.get(self.candidate.name, 0)
        used = min(outlook.mean_rps / self.rps_per_core, held)
        keep = 0.5 ** (outlook.since_s / HALF_LIFE_S)
        self._weights = {bucket: keep * weight for bucket, weight in self._weights.items()}
        bucket = math.ceil(used / BUCKET_CORES)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + 1.0
        wanted = math.ceil(SAFETY * BUCKET_CORES * self._percentile())
        units = min(max(wanted, min(self.candidate.capacity_rps)), CORES)
        if units == held:
            return running
        return Allocation({self.candidate.name: units}, {self.candidate.name: 1.0}, 0.0)

    def _percentile(self) -> int:
        buckets = sorted(self._weights)
        shares = np.cumsum([self._weights[bucket] for bucket in buckets])
        return buckets[int(np.searchsorted(shares, PERCENTILE * shares[-1]))]


def ours(outlook: Outlook) -> float:
    """Foresee by our forecaster's upper bound."""
    return outlook.bound_rps


def margin(outlook: Outlook) -> float:
    """Foresee by the last minute and the paper's margin, which its LSTM hardly beats."""
    return outlook.margin_rps


def infadapter(setting: Setting, resources: float, foresee: Callable[[Outlook], float]) -> Policy:
    """Return InfAdapter: several networks at a time."""
    return Adaptive(foresee, _allocator(setting, resources, setting.candidates).allocate)


def by_strategy(setting: Setting, resources: float, foresee: Callable[[Outlook], float]) -> Policy:
    """Return InfAdapter by the planner's own strategy, on the slices that cores have."""
    return Adaptive(foresee, StrategyAllocator(setting, resources).allocate)


def model_switching(
    setting: Setting, resources: float, foresee: Callable[[Outlook], float]
) -> Policy:
    """Return Model-Switching+: one network at a time, chosen with its cores by the same Eq. 1."""
    alone = [_allocator(setting, resources, [each]) for each in setting.candidates]

    def allocate(load_rps: float, running: Mapping[str, int]) -> Allocation:
        found = [each.allocate(load_rps, running) for each in alone]
        return max(found, key=lambda each: (-each.unserved_rps, each.objective))

    return Adaptive(foresee, allocate)


def only(setting: Setting, resources: float, name: str) -> Policy:
    """Return one network, sized for our forecast."""
    return Adaptive(ours, _allocator(setting, resources, [_named(setting, name)]).allocate)


def autoscaled(setting: Setting, name: str) -> Policy:
    """Return one network under the Vertical Pod Autoscaler."""
    candidate = _named(setting, name)
    densities = [rps / units for units, rps in candidate.capacity_rps.items()]
    return VerticalPodAutoscaler(candidate, float(np.median(densities)))


def _named(setting: Setting, name: str) -> Candidate:
    return next(each for each in setting.candidates if each.name == name)


def _allocator(setting: Setting, resources: float, candidates: Iterable[Candidate]) -> Allocator:
    return Allocator(candidates, CORES, setting.weights(resources))
