"""Energy that BASE would have drawn for the same requests, from the planner's own catalog.

BASE is CLOVER's reference (SC'23, section 5.1): each model's most accurate variant on whole GPUs of
the same fleet, blind to carbon. It is posed with the same demand, as in `plan explain`; the account
multiplies its active energy per request by the answered requests. Its batches are as full as the
arriving load makes them (`batch_flows`): a plan equal to BASE saves nothing. GPUs, and therefore
idle energy, are the same for both: plans do not decide on them.
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
"""Demand assumed for a model without any: BASE hosts it as well, req/s."""


@dataclass(frozen=True, slots=True)
class BaselineRate:
    """Active energy of BASE for a model's request on one node.

    Attributes:
        node: Name.
        energy_j: Mean over all of the model's requests, J.
        share: Share of those requests on this node.
        error: Half-width of the energy's 95 % interval, as a share.
    """

    node: str
    energy_j: float
    share: float
    error: float = 0.0


BaselineRates = Mapping[str, tuple[BaselineRate, ...]]
"""Rates by model; empty: BASE has no place for it."""


def baseline_rates(
    problem: Problem, arriving_rps: Mapping[str, float] | None = None
) -> BaselineRates:
    """Return BASE's energy per request of each model, by node.

    Args:
        problem: Fleet, models with the demand to provide for, and objective; catalog and running
            segments are not used.
        arriving_rps: Load that fills batches, by model, req/s; a model without one: its demand.
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
    """Return BASE's figures for a model's own entry, and whether BASE serves its requests.

    If BASE has no place for the model, or its nodes are gone, it draws the same as the plan: no
    saving is claimed. Else `baseline_spread` spreads its requests.

    Args:
        key: Key of the entry.
        figures: Figures of the entry.
        known: BASE's energy per request.
        site: Returns a node by name.
    """
    place = next((rate for rate in known.get(key.model, ()) if site(rate.node)), None)
    if place is None:
        return _same(figures), False
    if not figures.meter_error_gco2e:  # the energy came from the same profiles
        return Figures(profile_error_gco2e=-place.error * figures.carbon_gco2e), True
    return None, True


def baseline_spread(
    requests: Mapping[tuple[datetime, str], int],
    known: BaselineRates,
    site: Callable[[str], Site | None],
) -> Iterator[tuple[EntryKey, Figures]]:
    """Yield BASE's entries for requests, on all nodes where it would serve them.

    Args:
        requests: Requests by hour and model.
        known: BASE's energy per request.
        site: Returns a node by name.
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
    """Return figures in which BASE draws the same: nothing saved, without any error."""
    return Figures(
        base_energy_j=figures.energy_j,
        base_carbon_gco2e=figures.carbon_gco2e,
        meter_error_gco2e=-figures.meter_error_gco2e,
        intensity_error_gco2e=-figures.intensity_error_gco2e,
    )


def _alone(problem: Problem, model: Model) -> Iterator[SegmentKind]:
    """Yield the model's most accurate variant that fits on a GPU, if one is left."""
    pools = sorted(problem.pools.items(), key=lambda item: (-item[1], item[0].type.name))
    for variant in sorted(model.variants, key=lambda each: -each.accuracy):
        for pool, _ in pools:
            kind = dedicated(problem, Place(model, variant, pool, whole(pool)))
            if kind is not None:
                yield kind
                return


def _energy_j(profile: Profile, kind: SegmentKind, segments: int, load_rps: float) -> float:
    """Return the active energy per request, J, with batches as full as a load makes them."""
    shape = kind.pool.type.shape(whole(kind.pool), kind.gpus)
    costs = [profile.batch(shape, size, 1) for size in range(1, kind.batch_size + 1)]
    full = BatchCost(kind.latency_s, kind.energy_j * kind.batch_size)
    known = [cost or full for cost in costs]  # an unmeasured size counts as a full batch
    return mean_energy_j(load_rps, segments * kind.processes, known)


def _rates(
    problem: Problem,
    load_rps: Mapping[SegmentKind, float],
    energy_j: Mapping[SegmentKind, float],
    error: float,
) -> Iterator[BaselineRate]:
    """Yield a rate per node; BASE uses all GPUs of a pool equally."""
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
        load_rps: Arriving requests, req/s, >= 0; above capacity all batches are full.
        processes: Number of equal processes on one queue, >= 1.
        costs: Costs of batches of 1, 2, ... requests, up to the batch size; at least one.
    """
    flows = batch_flows(load_rps, processes, [cost.latency_s for cost in costs])
    energy_j = sum(flow * cost.energy_j for flow, cost in zip(flows, costs, strict=True))
    served_rps = sum(flow * size for size, flow in enumerate(flows, start=1))
    return energy_j / served_rps if served_rps else costs[0].energy_j


def batch_flows(load_rps: float, processes: int, times_s: Sequence[float]) -> list[float]:
    """Return the number of batches of 1, 2, ... requests that end per second.

    Workers never wait to fill a batch: a request that finds a process free is a batch of its own,
    and a process that ends a batch takes the requests that have arrived meanwhile, up to the batch
    size. With Poisson arrivals and memoryless batch times that is the queue M/M[1,B]/c: while all
    processes are busy the number of waiting requests is geometric, below that it is Erlang's system
    (Gross, Shortle, Thompson and Harris, "Fundamentals of Queueing Theory", 4th edition, section
    3.2.2, there for one server).

    All batches take the mean time of the batches, which in turn depends on it: the shortest mean
    for which the queue's batches take no longer.

    Args:
        load_rps: Arriving requests, req/s, >= 0.
        processes: Number of processes, >= 1.
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
    """Return the batches per second by size where a batch takes `batch_s` on average."""
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
