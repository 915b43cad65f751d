"""Capacity planning without a running suite: the GPUs that given services take."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from services.kit.config import Goals, Objective
from services.kit.errors import InvalidArgument
from services.kit.mig import Layout
from services.kit.profiles.table import TableProfile
from services.planner.core.model import (
    Configuration,
    Gpu,
    GpuType,
    Model,
    Pool,
    Problem,
    Score,
    Segment,
    SegmentKind,
    Variant,
)
from services.planner.core.placement.placement import place
from services.planner.core.problem import catalog
from services.planner.core.problem.pricing import most_gpcs
from services.planner.core.problem.score import score
from services.planner.core.strategies.parvagpu.strategy import allocate, single

LARGEST_FLEET = 20_000
"""Largest number of GPUs in an answer without a limit."""

FEWEST_GPUS = Goals(clover=0.0, fewest_gpus=1.0)
GPUS_PER_NODE = 8
TAIL_PERCENTILE = 95.0


@dataclass(frozen=True, slots=True)
class Service:
    """A model to serve.

    Attributes:
        model: Name of the model and of its profile.
        rate_rps: Request rate, req/s.
        latency_s: Latency objective, s.
    """

    model: str
    rate_rps: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Terms:
    """Objective and limits of capacity planning.

    Attributes:
        goals: Weights of the goals. Carbon has none: the tables lack power.
        gpus: Number of GPUs; None: as many as needed.
        latency_share: Share of the latency objective that a batch may take; the rest is for waiting
            (ParvaGPU, SC'24, section IV-A).
        max_utilisation: Share of a segment's throughput that may be used.
        max_processes: Most MPS processes per segment.
        time_limit_s: Limit of the strategy's time, s.
    """

    goals: Goals = FEWEST_GPUS
    gpus: int | None = None
    latency_share: float = 0.5
    max_utilisation: float = 1.0
    max_processes: int = 5
    time_limit_s: float = 10.0


@dataclass(frozen=True)
class Capacity:
    """Result of capacity planning.

    Attributes:
        problem: The problem.
        configuration: The configuration to run.
        segments: Its segments at their places.
    """

    problem: Problem
    configuration: Configuration
    segments: tuple[Segment, ...]

    @cached_property
    def score(self) -> Score:
        """Score of the configuration."""
        return score(self.problem, self.configuration)

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """Slices in use on each GPU in use, by UUID."""
        found: dict[str, Layout] = {}
        for segment in self.segments:
            found[segment.gpu_uuid] = (*found.get(segment.gpu_uuid, ()), segment.placement)
        return found

    @cached_property
    def gpcs(self) -> int:
        """Number of GPCs in use."""
        geometry = self.problem.gpus[0].pool.type.geometry
        return sum(geometry.kind(each.placement.profile).compute_slices for each in self.segments)

    @property
    def unallocated(self) -> float:
        """Share of the GPCs of GPUs in use without a segment."""
        geometry = self.problem.gpus[0].pool.type.geometry
        owned = len(self.layouts) * most_gpcs(geometry)
        return 1 - self.gpcs / owned if owned else 0.0


def pose(
    services: Iterable[Service], profiles: Mapping[str, TableProfile], gpu: GpuType, terms: Terms
) -> Problem:
    """Return the problem of serving `services` on GPUs of one type.

    Args:
        services: Services to serve.
        profiles: Profiles measured on `gpu`, by model.
        gpu: The GPU type.
        terms: Objective and limits.

    Raises:
        InvalidArgument: A service has no profile, or no segment that keeps its latency.
    """
    objective = Objective(
        goals=terms.goals,
        latency_share=terms.latency_share,
        max_utilisation=terms.max_utilisation,
        latency_rule="batch",
        park_idle_gpus=True,
    )
    models = tuple(_model(service, profiles) for service in services)
    pool = Pool(gpu, "", 1.0, objective.baseline_intensity_gco2e_per_kwh)
    batch_sizes = _batch_sizes(profiles.values())
    kinds = catalog.build(models, [pool], objective, batch_sizes, terms.max_processes)
    for model in models:
        if not any(kind.model == model.name for kind in kinds):
            raise InvalidArgument(
                _hopeless(model, pool, batch_sizes, terms), field=f"{model.name}.latency_s"
            )
    problem = Problem(
        gpus=(),
        models=models,
        catalog=kinds,
        objective=objective,
        time_limit_s=terms.time_limit_s,
        batch_sizes=batch_sizes,
    )
    return replace(problem, gpus=_fleet(pool, terms.gpus or _enough(problem, pool)))


def lay_out(problem: Problem, configuration: Configuration) -> Capacity:
    """Return a configuration with the places of its segments."""
    numbers = count(1)
    segments = place(problem, configuration, lambda: f"segment-{next(numbers)}")
    return Capacity(problem, configuration, segments)


def _model(service: Service, profiles: Mapping[str, TableProfile]) -> Model:
    profile = profiles.get(service.model)
    if profile is None:
        known = ", ".join(sorted(profiles))
        raise InvalidArgument(
            f"no profile of {service.model!r}; there are {known}", field=service.model
        )
    variant = Variant(service.model, 1.0, profile)
    return Model(service.model, service.latency_s, TAIL_PERCENTILE, service.rate_rps, (variant,))


def _batch_sizes(profiles: Iterable[TableProfile]) -> tuple[int, ...]:
    """Return the measured batch sizes."""
    return tuple(
        sorted(
            {
                point.batch_size
                for profile in profiles
                for series in profile.points.values()
                for point in series
            }
        )
    )


def _hopeless(model: Model, pool: Pool, batch_sizes: tuple[int, ...], terms: Terms) -> str:
    """Return the reason why a model has no segment."""
    points = (
        point
        for kind in pool.type.geometry.kinds
        for point in catalog.measure(
            catalog.Place(model, model.best, pool, kind), batch_sizes, terms.max_processes
        )
    )
    fastest = min(points, key=lambda point: point.latency_s, default=None)
    if fastest is None:
        return f"{model.name}: no row of its profile ran on a slice of {pool.type.name}"
    return (
        f"{model.name}: no segment keeps {terms.latency_share:g} x "
        f"{model.slo_latency_s * 1e3:g} ms; the fastest, {_words(fastest)}, takes "
        f"{fastest.latency_s * 1e3:.1f} ms"
    )


def _words(kind: SegmentKind) -> str:
    return f"{kind.profile} with batch size {kind.batch_size} and {kind.processes} process(es)"


def _enough(problem: Problem, pool: Pool) -> int:
    """Return a fleet large enough for any heuristic at its worst."""
    slowest_rps: dict[str, float] = {}
    for kind in problem.catalog:
        rps = problem.objective.max_utilisation * kind.throughput_rps
        slowest_rps[kind.model] = min(rps, slowest_rps.get(kind.model, math.inf))
    most = sum(math.ceil(each.demand_rps / slowest_rps[each.name]) for each in problem.models)
    endless = replace(problem, gpus=_fleet(pool, min(most, LARGEST_FLEET)))
    maps = (allocate(each, optimise=False) for each in (endless, single(endless)))
    return max(1, *(len(each.gpus) for each in maps))


def _fleet(pool: Pool, number: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(f"gpu-{index + 1}", f"node-{index // GPUS_PER_NODE + 1}", pool)
        for index in range(number)
    )
