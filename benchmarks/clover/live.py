"""A system whose true profiles differ from the planner's: the source of live measurements.

Stationary: mean batch sizes and busy times follow from load and true batch times; latency is the
queueing model's on true figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from services.kit.profiles.core.profile import BatchCost, Profile, SliceShape
from services.planner.core.model import Configuration, Model, Problem, Score, SegmentKind
from services.planner.core.online_search.measurement import Measurement, Observed
from services.planner.core.problem.catalog import Place, measure
from services.planner.core.problem.score import score

SPAN_S = 300.0
"""The paper's five minutes per evaluation."""

STEPS = 60
"""Bisections of a batch size."""

Factor = Callable[[str, str], tuple[float, float]]
"""By variant and slice kind: true over profiled batch time and energy."""


@dataclass(frozen=True, slots=True)
class Skewed:
    """A profile that is wrong by `factor`."""

    variant: str
    profile: Profile
    factor: Factor

    @property
    def method(self) -> Literal["model", "table"]:
        """Return the profile's origin of its numbers."""
        return self.profile.method

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        """Return the true cost of one batch; see `Profile`."""
        cost = self.profile.batch(shape, batch_size, processes, clock_ratio=clock_ratio)
        if cost is None:
            return None
        time, energy = self.factor(self.variant, shape.profile)
        return BatchCost(cost.latency_s * time, cost.energy_j * energy)


@dataclass(frozen=True, slots=True)
class World:
    """The truth behind a problem."""

    problem: Problem
    models: Mapping[str, Model]

    @classmethod
    def behind(cls, problem: Problem, factor: Factor) -> World:
        """Return the world in which every profile of `problem` is wrong by `factor`."""
        models = {
            model.name: replace(
                model,
                variants=tuple(
                    replace(each, profile=Skewed(each.name, each.profile, factor))
                    for each in model.variants
                ),
            )
            for model in problem.models
        }
        return cls(problem, models)

    def true(self, configuration: Configuration) -> Configuration:
        """Return a configuration with the figures as they are."""
        names = {kind: self._kind(kind) for kind in configuration.segments}
        return Configuration(
            {names[kind]: count for kind, count in configuration.segments.items()},
            {names[kind]: rps for kind, rps in configuration.load_rps.items()},
        )

    def score(self, configuration: Configuration) -> Score:
        """Return what a configuration is truly worth."""
        return score(self.known(), self.true(configuration))

    def known(self) -> Problem:
        """Return the problem that somebody with true profiles would solve."""
        return replace(
            self.problem,
            models=tuple(self.models[model.name] for model in self.problem.models),
            catalog=tuple(map(self._kind, self.problem.catalog)),
            running=tuple(replace(s, kind=self._kind(s.kind)) for s in self.problem.running),
        )

    def measure(self, configuration: Configuration) -> Measurement:
        """Return what agents and routers would report after SPAN_S."""
        observed = {
            kind: self._observe(kind, count, configuration.load_rps.get(kind, 0.0))
            for kind, count in configuration.segments.items()
        }
        return Measurement(SPAN_S, observed, self.score(configuration).latency_s)

    def _observe(self, kind: SegmentKind, count: int, load_rps: float) -> Observed:
        each_rps = min(load_rps / count, self._kind(kind).throughput_rps)
        items, busy = self._steady(kind, each_rps)
        cost = self._cost(kind, items, busy)
        batches = each_rps * count * SPAN_S / items
        return Observed(
            segments=count,
            requests=round(each_rps * count * SPAN_S),
            batches=round(batches),
            busy_s=batches * cost.latency_s,
            energy_j=batches * cost.energy_j,
        )

    def _steady(self, kind: SegmentKind, load_rps: float) -> tuple[float, int]:
        """Return the mean batch size at a load, and how many processes are busy meanwhile."""
        alone = self._cost(kind, 1.0, 1).latency_s
        if load_rps * alone <= 1.0:
            return 1.0, 1
        low, high = 1.0, float(kind.batch_size)
        for _ in range(STEPS):
            middle = (low + high) / 2
            taken_rps = kind.processes * middle / self._cost(kind, middle, kind.processes).latency_s
            low, high = (middle, high) if taken_rps < load_rps else (low, middle)
        return high, kind.processes

    def _cost(self, kind: SegmentKind, items: float, processes: int) -> BatchCost:
        gpu, low = kind.pool.type, int(items)
        shape = gpu.shape(gpu.geometry.kind(kind.profile))
        profile = next(
            v.profile for v in self.models[kind.model].variants if v.name == kind.variant
        )
        costs = [profile.batch(shape, low + more, processes) for more in (0, 1)]
        one = costs[0]
        assert one is not None, "it runs, so that it fits"
        other, weight = costs[1] or one, items - low
        return BatchCost(
            (1 - weight) * one.latency_s + weight * other.latency_s,
            (1 - weight) * one.energy_j + weight * other.energy_j,
        )

    def _kind(self, kind: SegmentKind) -> SegmentKind:
        model = self.models[kind.model]
        variant = next(each for each in model.variants if each.name == kind.variant)
        place = Place(model, variant, kind.pool, kind.pool.type.geometry.kind(kind.profile))
        return next(
            found
            for found in measure(place, (kind.batch_size,), kind.processes)
            if found.processes == kind.processes
        )
