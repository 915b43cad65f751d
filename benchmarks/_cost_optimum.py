"""Total cost of a day's plans beside the optimum, found among all configurations of a GPU.

Total cost is that of energy at the wall, and of accuracy given up at its value. Latency is
`services.planner.core.problem.latency_rule`'s; the search shares nothing else with the solver.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import _fleets as fleets
from services.kit.config import Objective
from services.kit.mig import maximal_layouts
from services.planner.core.model import Configuration, Pool, Problem, SegmentKind
from services.planner.core.problem.latency_rule import admissible_rps
from services.planner.core.strategies import REGISTRY

HOURS: Final = 24
VALUE_EUR: Final = 0.002
PUE: Final = 1.2
INTENSITY_GCO2E_PER_KWH: Final = 207.13


def eur_per_kwh(hour: int) -> float:
    """Return a day-ahead price: cheap at noon, dear in the evening."""
    noon, evening = math.exp(-(((hour - 13) / 3) ** 2)), math.exp(-(((hour - 19) / 2) ** 2))
    return 0.15 - 0.13 * noon + 0.35 * evening


@cache
def posed(hour: int, value_eur: float) -> Problem:
    """Return two models on one A100 in an hour."""
    pool = Pool(
        fleets.gpu_type("a100-40gb"),
        "US-CAL",
        PUE,
        INTENSITY_GCO2E_PER_KWH,
        eur_per_kwh=eur_per_kwh(hour),
    )
    models = [
        fleets.efficientnet("a", demand_rps=60.0, slo_s=0.4, scale=1.0),
        fleets.efficientnet("b", demand_rps=20.0, slo_s=0.6, scale=2.0),
    ]
    objective = Objective(kind="cost", carbon_price_eur_per_t=80.0, accuracy_value_eur=value_eur)
    found = fleets.problem(fleets.fleet([(pool, 1)]), models, objective, time_limit_s=10.0)
    price = objective.accuracy_price_gco2e
    assert price is not None
    kinds = tuple(k for k in found.catalog if k.batch_size == 8 and k.processes == 1)
    return replace(found, catalog=kinds, accuracy_price={m.name: price for m in models})


def request_eur(problem: Problem, kind: SegmentKind) -> float:
    """Return the cost of a request: its energy, and the accuracy that it gives up."""
    objective = problem.objective
    best = next(m.best.accuracy for m in problem.models if m.name == kind.model)
    points = 100 * (1 - kind.accuracy / best)
    energy_eur = kind.pool.cost_eur(kind.energy_j, objective.carbon_price_eur_per_t)
    return energy_eur + 1e-3 * (objective.accuracy_value_eur or 0.0) * points


def idle_eur_per_h(problem: Problem, pool: Pool) -> float:
    """Return the cost of a GPU in use that computes nothing, EUR/h."""
    return pool.cost_eur(3600 * pool.type.context_power_w, problem.objective.carbon_price_eur_per_t)


def total_eur_per_h(problem: Problem, load_rps: Mapping[SegmentKind, float]) -> float:
    """Return the total cost of a configuration whose GPU is in use, EUR/h."""
    idle_eur = idle_eur_per_h(problem, next(iter(problem.pools)))
    return idle_eur + 3600 * sum(rps * request_eur(problem, k) for k, rps in load_rps.items())


def all_counts(problem: Problem) -> NDArray[np.int64]:
    """Return every set of segments that fills one GPU: numbers by kind, in the catalog's order."""
    kinds: dict[str, list[int]] = {}
    for index, kind in enumerate(problem.catalog):
        kinds.setdefault(kind.profile, []).append(index)
    geometry = next(iter(problem.pools)).type.geometry
    slices = {tuple(sorted(place.profile for place in each)) for each in maximal_layouts(geometry)}
    chosen = {
        tuple(sorted(index for each in parts for index in each))
        for layout in slices
        for parts in product(
            *(
                combinations_with_replacement(kinds.get(profile, ()), count)
                for profile, count in Counter(layout).items()
            )
        )
    }
    size = len(problem.catalog)
    return np.array([np.bincount(each, minlength=size) for each in chosen], np.int64)


def least_eur_per_h(problem: Problem, counts: NDArray[np.int64]) -> float:
    """Return the least total cost of all sets of segments that serve all requests in time, EUR/h.

    The load of a set goes to its cheapest kinds first, which is best for each model by itself.
    """
    pool = next(iter(problem.pools))
    total_eur = np.full(len(counts), idle_eur_per_h(problem, pool))
    served = np.ones(len(counts), bool)
    for model in problem.models:
        rest_rps = np.full(len(counts), model.demand_rps)
        own = [(i, k) for i, k in enumerate(problem.catalog) if k.model == model.name]
        for index, kind in sorted(own, key=lambda each: request_eur(problem, each[1])):
            most_rps = counts[:, index] * admissible_rps(problem.objective, model, kind)
            load_rps = np.minimum(most_rps, rest_rps)
            rest_rps -= load_rps
            total_eur += 3600 * request_eur(problem, kind) * load_rps
        served &= rest_rps <= 1e-9
    return float(total_eur[served].min())


def hours(values_eur: Iterable[float]) -> Iterator[tuple[float, float]]:
    """Yield total cost of `exact`'s plan and of the optimum, EUR/h, of each hour and value."""
    counts = all_counts(posed(0, VALUE_EUR))
    for value_eur, hour in product(values_eur, range(HOURS)):
        problem = posed(hour, value_eur)
        found: Configuration = REGISTRY["exact"](problem)
        served = sum(found.load_rps.values())
        demand = sum(model.demand_rps for model in problem.models)
        assert math.isclose(served, demand, rel_tol=1e-6), "the plan refuses requests"
        yield total_eur_per_h(problem, found.load_rps), least_eur_per_h(problem, counts)


def cost_gap(values_eur: Iterable[float]) -> dict[str, float]:
    """Return by how much a day's plans cost more than the optimum: of all hours, and at worst.

    Args:
        values_eur: Values of a point of accuracy in 1,000 requests, EUR; a day each.
    """
    found = list(hours(values_eur))
    ours, best = (sum(each) for each in zip(*found, strict=True))
    return {
        "hours": float(len(found)),
        "gap": ours / best - 1,
        "worst_gap": max(mine / least - 1 for mine, least in found),
    }
