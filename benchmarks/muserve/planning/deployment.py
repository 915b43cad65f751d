"""Partitions on devices, group by group: the second half of mu-Serve's section 3.2."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from benchmarks.muserve.planning import exact, power_aware
from benchmarks.muserve.planning.alpaserve import spread
from benchmarks.muserve.planning.clocking import WAITING, demands
from benchmarks.muserve.planning.groups import Grouping
from benchmarks.muserve.planning.model import (
    LIMITS,
    Demand,
    Device,
    Group,
    Limits,
    Placement,
    Served,
    clock_ratios,
)
from benchmarks.muserve.planning.pipelines import Pipeline, pipeline

Method = Literal["alpaserve", "muserve", "exact"]

Placer = Callable[[Sequence[Device], Sequence[Demand], Limits], Placement | None]

IMBALANCES: Final = (1.1, 1.25, 1.5, 2.0)
"""Most load of a device over the mean of its group: the first that a placement keeps."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Pipelines and clocks of the devices.

    Attributes:
        pipelines: The instances.
        clock_ratios: Least clock of each device, over the highest, by device name.
        fallbacks: Groups in which the method found no placement, so that AlpaServe's stands.
    """

    pipelines: tuple[Pipeline, ...]
    clock_ratios: Mapping[str, float]
    fallbacks: int = 0


def deploy(
    models: Sequence[Served],
    grouping: Grouping,
    method: Method,
    *,
    waiting: float = WAITING,
    time_limit_s: float = exact.TIME_LIMIT_S,
) -> Deployment:
    """Place the partitions of every group's models on its devices.

    Args:
        models: The models to serve.
        grouping: Groups of devices with their models.
        method: Placement by AlpaServe (each model over all devices of the group), mu-Serve's
            Algorithm 2, or the exact program of its objective.
        waiting: Share of the objectives that is left for waiting.
        time_limit_s: Longest the exact program may take for one group, s.
    """
    known = {model.name: model for model in models}
    place = _placer(method, time_limit_s)
    running: list[Pipeline] = []
    ratios: dict[str, float] = {}
    fallbacks = 0
    for group in grouping.groups:
        wanted = [
            demand
            for name in group.models
            for demand in demands(known[name], grouping.instances(name), waiting=waiting)
        ]
        placement = _balanced(place, group, wanted)
        fallbacks += placement is None and method != "alpaserve"
        placement = placement or _spread(known, group, wanted)
        where = {demand.partition: device for demand, device in placement.items()}
        running += [pipeline(known[name], where) for name in group.models]
        ratios |= clock_ratios(placement, group.devices)
    return Deployment(tuple(running), ratios, fallbacks)


def _balanced(place: Placer, group: Group, demands: Sequence[Demand]) -> Placement | None:
    """Return the placement that loads the devices most evenly, as far as there is one.

    Without this all goes to few devices, where the sum of clocks is least and requests wait.
    """
    mean = sum(each.load for each in demands) / len(group.devices)
    for imbalance in IMBALANCES:
        limits = replace(LIMITS, most_load=min(imbalance * mean, LIMITS.most_load))
        placement = place(group.devices, demands, limits)
        if placement is not None:
            return placement
    return None


def _placer(method: Method, time_limit_s: float) -> Placer:
    match method:
        case "alpaserve":
            return lambda *_: None
        case "muserve":
            return power_aware.place
        case "exact":
            return partial(_exact, time_limit_s=time_limit_s)


def _exact(
    devices: Sequence[Device], demands: Sequence[Demand], limits: Limits, *, time_limit_s: float
) -> Placement | None:
    found = exact.place(devices, demands, limits, time_limit_s=time_limit_s)
    return None if found is None else found.placement


def _spread(known: Mapping[str, Served], group: Group, demands: Sequence[Demand]) -> Placement:
    by_model = {name: spread(known[name], group.devices) for name in group.models}
    return {demand: by_model[demand.partition.model][demand.partition] for demand in demands}
