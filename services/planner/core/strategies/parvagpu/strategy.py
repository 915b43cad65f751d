"""ParvaGPU: segments of MIG slices and MPS processes on fewest GPUs (SC'24), as a strategy.

The Segment Configurator picks each model's segments, the Segment Allocator their GPUs; both modules
name what is repaired. ParvaGPU knows no carbon and no accuracy: of a model's variants it runs the
most accurate that is in time, and every goal but fewest GPUs is left to other strategies.
"""

from collections import defaultdict
from dataclasses import replace

from services.planner.core.model import Configuration, Problem
from services.planner.core.problem import catalog
from services.planner.core.strategies.parvagpu.allocation import Allocation, allocate


def parvagpu(problem: Problem) -> Configuration:
    """Match demand with optimal triplets, relocate and split them (ParvaGPU, Algorithms 1-2)."""
    return configuration(problem, allocate(problem))


def single(problem: Problem) -> Problem:
    """Return the problem with one process per segment, without MPS (ParvaGPU-single)."""
    kinds = catalog.build(
        problem.models, problem.pools, problem.objective, problem.batch_sizes, max_processes=1
    )
    return replace(problem, catalog=kinds)


def configuration(problem: Problem, allocation: Allocation) -> Configuration:
    """Return a map's segments, each with a load in proportion to its throughput."""
    segments = allocation.segments
    total_rps: defaultdict[str, float] = defaultdict(float)
    for kind, count in segments.items():
        total_rps[kind.model] += count * kind.throughput_rps
    demand_rps = {model.name: model.demand_rps for model in problem.models}
    return Configuration(
        segments=segments,
        load_rps={
            kind: demand_rps[kind.model] * count * kind.throughput_rps / total_rps[kind.model]
            for kind, count in segments.items()
        },
    )
