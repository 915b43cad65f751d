"""Power of segments by their load, as meters will show it.

A segment that batches takes what has arrived, so that its batches grow with the load until
`batch = load * time of the batch`: a point of the curve for each batch size. Small batches take
more energy a request: a step of a language model draws nearly as much for one answer as for ten.
Programs and the objective are linear in the load: of texts they count the energy that a request
takes where the fewest segments of a kind that suffice serve the whole demand, which is exact for a
plan of one kind and else at most what is drawn; the first step of dynamic slope scaling (Kim and
Pardalos, "A solution approach to the fixed charge network flow problem using a dynamic slope
scaling procedure", Operations Research Letters 24, 1999). The power and the emissions that a plan
predicts are those of its load.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from services.kit.profiles.core.language import TokenProfile
from services.kit.units import S_PER_H
from services.planner.core.model import (
    Configuration,
    GpuType,
    Model,
    Pool,
    Problem,
    Score,
    SegmentKind,
    Variant,
)
from services.planner.core.problem.latency_rule import admissible_rps

FILLED: Final = 0.85
"""Part of its throughput to which a segment is filled, by routers or with waiting work: the rest
keeps interactive requests' latency."""


_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """Active power of a segment by load.

    Attributes:
        rates_rps: Loads, increasing, from 0.
        watts: Power above that of a GPU that computes nothing, at each, W.
    """

    rates_rps: tuple[float, ...]
    watts: tuple[float, ...]

    @property
    def most_rps(self) -> float:
        """Throughput, req/s."""
        return self.rates_rps[-1]

    def at(self, rate_rps: float) -> float:
        """Return the power at a load, W."""
        return float(np.interp(rate_rps, self.rates_rps, self.watts))

    def marginal_j(self, rate_rps: float, until_rps: float) -> float:
        """Return the energy of a request more between two loads, J."""
        more_rps = until_rps - rate_rps
        if more_rps <= 0:
            return 0.0
        return max(self.at(until_rps) - self.at(rate_rps), 0.0) / more_rps


def curve_of(model: Model, kind: SegmentKind) -> PowerCurve:
    """Return the curve of a segment that serves in one piece, or is a pipeline's first stage."""
    variant = next((each for each in model.variants if each.name == kind.variant), None)
    if variant is None or variant.pipeline:
        watts = kind.energy_j * kind.throughput_rps
        return PowerCurve((0.0, kind.throughput_rps), (0.0, watts))
    clock_ratio = kind.clock_mhz / kind.pool.type.max_clock_mhz if kind.clock_mhz else 1.0
    size = kind.batch_size, kind.processes
    return _curve(variant, kind.pool.type, kind.profile, size, clock_ratio)


@lru_cache(maxsize=8192)
def _curve(
    variant: Variant, gpu: GpuType, profile: str, size: tuple[int, int], clock_ratio: float
) -> PowerCurve:
    batch_size, processes = size
    shape = gpu.shape(gpu.geometry.kind(profile), variant.gpus)
    sizes = [2**power for power in range(batch_size.bit_length()) if 2**power < batch_size]
    points = {0.0: 0.0}
    few = [(1, busy) for busy in range(1, processes)]  # of little load not all are busy
    for items, busy in (*few, *((items, processes) for items in (*sizes, batch_size))):
        cost = variant.profile.batch(shape, items, busy, clock_ratio=clock_ratio)
        if cost is not None:
            batches_per_s = busy / cost.latency_s
            points[batches_per_s * items] = batches_per_s * cost.energy_j
    rates = tuple(sorted(points))
    return PowerCurve(rates, tuple(np.maximum.accumulate([points[rate] for rate in rates])))


def at_load(problem: Problem) -> Problem:
    """Return a problem in which kinds that serve texts have the energy of the demand's batches."""
    models = {
        model.name: model
        for model in problem.models
        if model.demand_rps > 0
        and any(isinstance(variant.profile, TokenProfile) for variant in model.variants)
    }
    if not models:
        return problem

    def loaded(kind: SegmentKind) -> SegmentKind:
        model = models.get(kind.model)
        if model is None or kind.throughput_rps <= 0:
            return kind
        usable_rps = admissible_rps(problem.objective, model, kind) or kind.throughput_rps
        count = max(math.ceil(model.demand_rps / usable_rps - _ROUNDING), 1)
        return replace(kind, energy_j=request_energy_j(model, kind, count, fills=model.fills))

    return replace(
        problem,
        catalog=tuple(map(loaded, problem.catalog)),
        running=tuple(replace(each, kind=loaded(each.kind)) for each in problem.running),
    )


def request_energy_j(model: Model, kind: SegmentKind, count: int, *, fills: bool) -> float:
    """Return the energy of a request where so many segments serve all of a model's demand, J."""
    variant = next((each for each in model.variants if each.name == kind.variant), None)
    if variant is None or not isinstance(variant.profile, TokenProfile):
        return kind.energy_j
    curve = curve_of(model, kind)
    load_rps = min(model.demand_rps, count * curve.most_rps)
    if load_rps <= 0:
        return kind.energy_j
    return _power_w(load_rps, curve, count, fills=fills) / load_rps


def _power_w(load_rps: float, curve: PowerCurve, count: int, *, fills: bool) -> float:
    """Return the power of segments that are filled one after another, or else evenly loaded, W."""
    if not fills:
        return count * curve.at(load_rps / count)
    usual_rps = FILLED * curve.most_rps
    over_rps = max(load_rps - count * usual_rps, 0.0) / count
    full = min(int(load_rps / usual_rps), count)
    watts = full * curve.at(usual_rps + over_rps)
    return watts + curve.at(load_rps - full * usual_rps) if full < count else watts


def expected(
    problem: Problem, configuration: Configuration, score: Score, *, fills: bool = True
) -> Score:
    """Return a score whose power and emissions are those of texts' batches at their load.

    Args:
        problem: The problem.
        configuration: The configuration.
        score: Its score, by the energy of its kinds.
        fills: Routers fill segments one after another where the model says so; else all are evenly
            loaded, as BASE's.
    """
    models = {model.name: model for model in problem.models}
    more_w: defaultdict[Pool, float] = defaultdict(float)
    for kind, count in configuration.segments.items():
        model = models.get(kind.model)
        if model is None or kind.token_times is None or count <= 0:
            continue
        curve = curve_of(model, kind)
        load_rps = min(configuration.load_rps.get(kind, 0.0), count * kind.throughput_rps)
        watts = _power_w(load_rps, curve, count, fills=fills and model.fills)
        more_w[kind.pool] += watts - load_rps * kind.energy_j
    more_g = sum(pool.carbon_gco2e(watts * S_PER_H) for pool, watts in more_w.items())
    return replace(
        score,
        power_w=score.power_w + sum(more_w.values()),
        carbon_gco2e_per_h=score.carbon_gco2e_per_h + more_g,
    )
