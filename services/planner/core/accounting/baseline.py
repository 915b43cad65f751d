"""What BASE would have drawn for the same requests, as the planner's own catalog says.

BASE is CLOVER's reference (SC'23, section 5.1): each model's most accurate variant on whole GPUs of
the same fleet, blind to carbon. It is posed with the same demand, as `plan explain` does; the
account then multiplies its active energy per request by the requests that were answered. Its
batches are as full as the load that arrives makes them (`batch_flows`): a plan that is BASE
saves nothing. GPUs, and so idle energy, are the same: nothing is saved by what the fleet does not
decide.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from services.kit.profiles.core.profile import BatchCost, Profile
from services.planner.core.accounting.entries import EntryKey, Figures
from services.planner.core.accounting.site import PROFILE, Site
from services.planner.core.model import Configuration, Model, Problem, SegmentKind, variants_of
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
        error: Half-width of the energy's 95 % interval, as a share.
    """

    node: str
    energy_j: float
    share: float
    error: float = 0.0


BaselineRates = Mapping[str, tuple[BaselineRate, ...]]
"""By model; none: BASE has no place for it."""


def baseline_rates(
    problem: Problem, arriving_rps: Mapping[str, float] | None = None
) -> BaselineRates:
    """Return what a request of each model would have drawn, and where.

    Args:
        problem: Fleet, models with the demand to provide for, and objective; catalog and what runs
            play no part.
        arriving_rps: Load by model that batches fill with, req/s; a model left out: its demand.
    """
    problem = replace(
        problem,
        models=tuple(
            replace(model, demand_rps=max(model.demand_rps, _MIN_RPS)) for model in problem.models
        ),
        catalog=(),
        running=(),
    )
    hosted = base(problem) if problem.gpus else Configuration({}, {})
    found, known = {}, variants_of(problem.models)
    for model in problem.models:
        load_rps = {
            kind: rps for kind, rps in hosted.load_rps.items() if kind.model == model.name and rps
        } or dict.fromkeys(_alone(problem, model), model.demand_rps)
        arriving = (arriving_rps or {}).get(model.name, model.demand_rps) / model.demand_rps
        energy_j = {
            kind: _energy_j(
                known[kind.model, kind.variant].profile,
                kind,
                hosted.segments.get(kind, 1),
                rps * arriving,
            )
            for kind, rps in load_rps.items()
        }
        methods = (known[kind.model, kind.variant].profile.method for kind in load_rps)
        error = max((PROFILE[method] for method in methods), default=0)
        found[model.name] = tuple(_rates(problem, load_rps, energy_j, error))
    return found


def baseline_entry(
    key: EntryKey, figures: Figures, known: BaselineRates, site: Callable[[str], Site | None]
) -> tuple[Figures | None, bool]:
    """Return what is said of BASE in a model's own entry, and whether BASE serves its requests.

    Where BASE has no place for the model, or its nodes are gone, it is said to draw what was drawn:
    nothing is claimed to be saved. Else its requests are to be spread by `baseline_spread`.

    Args:
        key: The entry's.
        figures: The entry's.
        known: Energy per request.
        site: By node.
    """
    place = next((rate for rate in known.get(key.model, ()) if site(rate.node)), None)
    if place is None:
        return _same(figures), False
    if not figures.meter_error_gco2e:  # the same profiles made what ran
        return Figures(profile_error_gco2e=-place.error * figures.carbon_gco2e), True
    return None, True


def baseline_spread(
    requests: Mapping[tuple[datetime, str], int],
    known: BaselineRates,
    site: Callable[[str], Site | None],
) -> Iterator[tuple[EntryKey, Figures]]:
    """Yield what BASE would have drawn for requests, on all nodes where it would serve them.

    Args:
        requests: By hour and model.
        known: Energy per request.
        site: By node.
    """
    sites: dict[str, Site | None] = {}
    for (hour, model), count in requests.items():
        rates = known.get(model, ())
        for rate in rates:
            if rate.node not in sites:
                sites[rate.node] = site(rate.node)
        places = [(rate, where) for rate in rates if (where := sites[rate.node])]
        reached = sum(rate.share for rate, _ in places)
        for rate, where in places:
            energy_j = count * rate.energy_j / reached
            carbon_gco2e = where.carbon_gco2e(energy_j)
            entry = Figures(
                base_energy_j=energy_j,
                base_carbon_gco2e=carbon_gco2e,
                profile_error_gco2e=rate.error * carbon_gco2e,
                intensity_error_gco2e=where.intensity_error * carbon_gco2e,
            )
            yield EntryKey(hour, where.zone, where.node, model), entry


def _same(figures: Figures) -> Figures:
    """Return what is said of BASE where it draws what was drawn: nothing saved, and that surely."""
    return Figures(
        base_energy_j=figures.energy_j,
        base_carbon_gco2e=figures.carbon_gco2e,
        meter_error_gco2e=-figures.meter_error_gco2e,
        intensity_error_gco2e=-figures.intensity_error_gco2e,
    )


def _alone(problem: Problem, model: Model) -> Iterator[SegmentKind]:
    """Yield the model's most accurate variant that fits on a GPU, whether one is left or not."""
    pools = sorted(problem.pools.items(), key=lambda item: (-item[1], item[0].type.name))
    for variant in sorted(model.variants, key=lambda each: -each.accuracy):
        for pool, _ in pools:
            kind = dedicated(problem, Place(model, variant, pool, whole(pool)))
            if kind is not None:
                yield kind
                return


def _energy_j(profile: Profile, kind: SegmentKind, segments: int, load_rps: float) -> float:
    """Return the active energy per request where batches are as full as a load makes them, J."""
    shape = kind.pool.type.shape(whole(kind.pool))
    costs = [profile.batch(shape, size, 1) for size in range(1, kind.batch_size + 1)]
    full = BatchCost(kind.latency_s, kind.energy_j * kind.batch_size)
    known = [cost or full for cost in costs]  # a size that was not measured counts as a full batch
    return mean_energy_j(load_rps, segments * kind.processes, known)


def _rates(
    problem: Problem,
    load_rps: Mapping[SegmentKind, float],
    energy_j: Mapping[SegmentKind, float],
    error: float,
) -> Iterator[BaselineRate]:
    """Yield a rate per node; of the GPUs of a pool, BASE prefers none."""
    total_rps = sum(load_rps.values())
    found: dict[str, BaselineRate] = {}
    for kind, rps in load_rps.items():
        own = [gpu for gpu in problem.gpus if gpu.pool == kind.pool]
        for gpu in own:
            share = rps / total_rps / len(own)
            known = found.get(gpu.node, BaselineRate(gpu.node, 0.0, 0.0))
            drawn_j = known.energy_j + energy_j[kind] * share
            found[gpu.node] = BaselineRate(gpu.node, drawn_j, known.share + share, error)
    yield from found.values()


_BISECTIONS = 30


def mean_energy_j(load_rps: float, processes: int, costs: Sequence[BatchCost]) -> float:
    """Return the active energy per request, J.

    Args:
        load_rps: Requests that arrive, req/s, >= 0; beyond capacity all batches are full.
        processes: Equal processes that draw from one queue, >= 1.
        costs: Of batches of 1, 2, ... requests, up to the batch size; at least one.
    """
    flows = batch_flows(load_rps, processes, [cost.latency_s for cost in costs])
    energy_j = sum(flow * cost.energy_j for flow, cost in zip(flows, costs, strict=True))
    served_rps = sum(flow * size for size, flow in enumerate(flows, start=1))
    return energy_j / served_rps if served_rps else costs[0].energy_j


def batch_flows(load_rps: float, processes: int, times_s: Sequence[float]) -> list[float]:
    """Return how many batches of 1, 2, ... requests end in a second: how full batches are.

    Workers never wait to fill a batch: a request that finds a process free is a batch of its own,
    and a process that ends a batch takes what has come meanwhile, up to the batch size. With
    Poisson arrivals and memoryless batch times that is the queue M/M[1,B]/c: while all processes
    are busy the number that waits is geometric, and below that it is Erlang's system (Gross,
    Shortle, Thompson and Harris, "Fundamentals of Queueing Theory", 4th edition, section 3.2.2,
    there for one server).

    A batch takes the mean of the batches' times, whose own mixture depends on it: the shortest
    such time is taken, up to which the queue's batches take longer than was assumed.

    Args:
        load_rps: Requests that arrive, req/s, >= 0.
        processes: Processes, >= 1.
        times_s: Times of batches of 1, 2, ... requests, s.
    """
    low_s, high_s = min(times_s), max(times_s)
    for _ in range(_BISECTIONS):
        assumed_s = (low_s + high_s) / 2
        flows = _flows(load_rps, processes, len(times_s), assumed_s)
        busy = sum(flow * time_s for flow, time_s in zip(flows, times_s, strict=True))
        if busy > sum(flows) * assumed_s:
            low_s = assumed_s
        else:
            high_s = assumed_s
    return _flows(load_rps, processes, len(times_s), high_s)


def _flows(load_rps: float, processes: int, largest: int, batch_s: float) -> list[float]:
    """Return the batches per second by size where every batch takes `batch_s` on average."""
    offered = load_rps * batch_s
    if offered >= processes * largest:
        return [*[0.0] * (largest - 1), processes / batch_s]
    ratio = _decay(offered / processes, largest)
    blocked = _erlang_b(offered, processes)
    none_waits = blocked / (1.0 - blocked + blocked / (1.0 - ratio))
    free = 1.0 - none_waits / (1.0 - ratio)
    ends_per_s = processes / batch_s * none_waits
    flows = [ends_per_s * ratio**size for size in range(1, largest + 1)]
    flows[-1] /= 1.0 - ratio
    flows[0] += load_rps * free
    return flows


def _decay(offered: float, largest: int) -> float:
    """Return r in [0, 1) with r + r^2 + ... + r^largest = offered, the load per process."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle * (1.0 - middle**largest) / (1.0 - middle) < offered:
            low = middle
        else:
            high = middle
    return low


def _erlang_b(offered: float, processes: int) -> float:
    """Return Erlang's loss probability."""
    blocked = 1.0
    for servers in range(1, processes + 1):
        blocked = offered * blocked / (servers + offered * blocked)
    return blocked
