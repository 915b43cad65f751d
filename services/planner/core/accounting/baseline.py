"""What BASE would have drawn for the same requests, as the planner's own catalog says.

BASE is CLOVER's reference (SC'23, section 5.1): each model's most accurate variant on whole GPUs of
the same fleet, blind to carbon. It is posed with the same demand, as `plan explain` does; the
account then multiplies its active energy per request by the requests that were answered. GPUs,
and so idle energy, are the same: nothing is saved by what the fleet does not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from services.planner.core.accounting.entries import EntryKey, Figures
from services.planner.core.accounting.site import Site
from services.planner.core.model import Model, Problem, SegmentKind
from services.planner.core.problem.catalog import Place, dedicated, whole
from services.planner.core.strategies.base import base

_MIN_RPS = 1e-3
"""Demand that a model without any is given: BASE hosts it, too."""


@dataclass(frozen=True, slots=True)
class BaselineRate:
    """Active energy that a request of a model would have drawn on one node.

    Attributes:
        node: Name.
        energy_j: On average over all of the model's requests, J.
        share: Share of those requests that would have gone there.
    """

    node: str
    energy_j: float
    share: float


BaselineRates = Mapping[str, tuple[BaselineRate, ...]]
"""By model; none: BASE has no place for it."""


def baseline_rates(problem: Problem) -> BaselineRates:
    """Return what a request of each model would have drawn, and where.

    Args:
        problem: Fleet, models with their demand, and objective; catalog and what runs play no part.
    """
    problem = replace(
        problem,
        models=tuple(
            replace(model, demand_rps=max(model.demand_rps, _MIN_RPS)) for model in problem.models
        ),
        catalog=(),
        running=(),
    )
    load_rps = base(problem).load_rps if problem.gpus else {}
    found = {}
    for model in problem.models:
        own = {kind: rps for kind, rps in load_rps.items() if kind.model == model.name and rps > 0}
        found[model.name] = tuple(_rates(problem, own or _alone(problem, model)))
    return found


def baseline_entries(
    key: EntryKey, figures: Figures, known: BaselineRates, site: Callable[[str], Site | None]
) -> Iterator[tuple[EntryKey, Figures]]:
    """Yield what BASE would have drawn instead of a model's entry.

    Where BASE has no place for the model, or its node is gone, it is said to draw what was drawn:
    nothing is claimed to be saved.

    Args:
        key: The entry's.
        figures: The entry's.
        known: Energy per request.
        site: By node.
    """
    places = [(rate, where) for rate in known.get(key.model, ()) if (where := site(rate.node))]
    if not places:
        same = Figures(base_energy_j=figures.energy_j, base_carbon_gco2e=figures.carbon_gco2e)
        yield key, same
        return
    reached = sum(rate.share for rate, _ in places)
    for rate, where in places:
        energy_j = figures.requests * rate.energy_j / reached
        entry = Figures(base_energy_j=energy_j, base_carbon_gco2e=where.carbon_gco2e(energy_j))
        yield EntryKey(key.hour, where.zone, where.node, key.model), entry


def _alone(problem: Problem, model: Model) -> dict[SegmentKind, float]:
    """Return the model's most accurate variant that fits on a GPU, whether one is left or not."""
    pools = sorted(problem.pools.items(), key=lambda item: (-item[1], item[0].type.name))
    for variant in sorted(model.variants, key=lambda each: -each.accuracy):
        for pool, _ in pools:
            kind = dedicated(problem, Place(model, variant, pool, whole(pool)))
            if kind is not None:
                return {kind: model.demand_rps}
    return {}


def _rates(problem: Problem, load_rps: Mapping[SegmentKind, float]) -> Iterator[BaselineRate]:
    """Yield a rate per node; of the GPUs of a pool, BASE prefers none."""
    total_rps = sum(load_rps.values())
    found: dict[str, BaselineRate] = {}
    for kind, rps in load_rps.items():
        own = [gpu for gpu in problem.gpus if gpu.pool == kind.pool]
        for gpu in own:
            share = rps / total_rps / len(own)
            known = found.get(gpu.node, BaselineRate(gpu.node, 0.0, 0.0))
            energy_j = known.energy_j + kind.energy_j * share
            found[gpu.node] = BaselineRate(gpu.node, energy_j, known.share + share)
    yield from found.values()
