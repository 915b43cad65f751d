"""Groups of devices that serve together, and the models of each (mu-Serve, section 3.2).

As in AlpaServe (OSDI'23): the cluster is cut into groups of equal size; for each size a greedy
search, guided by simulation, gives models to groups; the size that serves most requests in time
wins. It is their fast variant: the model with the most late requests goes to the group with the
least load that has room for it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.muserve.planning.alpaserve import spread
from benchmarks.muserve.planning.model import Device, Group, Partition, Served
from benchmarks.muserve.planning.pipelines import Job, Pipeline, Simulation, pipeline

SIZES = (1, 2, 4)
"""Devices per group to try."""

ENOUGH = 0.999
"""Share of requests in time with which the search is content."""

ALIKE = 0.001
"""Attainments that differ by no more are alike: one or two requests of a sample are chance."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups with their models.

    Attributes:
        groups: The groups; each device is in one.
        attainment: Share of the sample's requests answered in time, 0..1.
        complete: Every model has an instance.
    """

    groups: tuple[Group, ...]
    attainment: float
    complete: bool

    def instances(self, model: str) -> int:
        """Return how many groups serve a model."""
        return sum(model in group.models for group in self.groups)


def choose(
    models: Sequence[Served],
    devices: Sequence[Device],
    sample: Sequence[Job],
    sizes: Iterable[int] = SIZES,
) -> Grouping:
    """Return the grouping that serves most requests in time; of those alike, of largest groups.

    The larger a group, the more ways to place its partitions by power.

    Args:
        models: The models to serve.
        devices: Devices of one type.
        sample: Requests to judge by.
        sizes: Devices per group to try; the last group may be smaller.
    """
    found = [
        _Search(models, cut(devices, size), sample).run() for size in sizes if size <= len(devices)
    ]
    whole = [each for each in found if each.complete] or found
    best = max(each.attainment for each in whole)
    alike = (each for each in whole if each.attainment >= best - ALIKE)
    return max(alike, key=lambda each: len(each.groups[0].devices))


def cut(devices: Sequence[Device], size: int) -> tuple[Group, ...]:
    """Cut a cluster into groups of `size` devices; the last takes what is left."""
    starts = range(0, len(devices), size)
    return tuple(Group(tuple(devices[start : start + size])) for start in starts)


def pipelines(models: Sequence[Served], groups: Iterable[Group]) -> list[Pipeline]:
    """Return AlpaServe's instances: each a pipeline over all devices of its group."""
    known = {model.name: model for model in models}
    return [
        pipeline(known[name], spread(known[name], group.devices))
        for group in groups
        for name in group.models
    ]


class _Search:
    """The greedy search with one cut of the cluster."""

    def __init__(
        self, models: Sequence[Served], groups: tuple[Group, ...], sample: Sequence[Job]
    ) -> None:
        self._models = {model.name: model for model in models}
        self._groups = list(groups)
        self._sample = sample
        self._requests = Counter(job.model for job in sample if job.model in self._models)
        self._left = {d.name: d.memory_bytes for group in groups for d in group.devices}

    def run(self) -> Grouping:
        """Give models to groups while that brings more requests in time."""
        self._place_all()
        served, late = self._measure()
        while served < ENOUGH and (step := self._next(late)) is not None:
            index, name = step
            self._add(index, name)
            more, after = self._measure()
            if more <= served:
                self._remove(index, name)
                break
            served, late = more, after
        complete = {name for group in self._groups for name in group.models} == set(self._models)
        return Grouping(tuple(self._groups), served, complete)

    def _place_all(self) -> None:
        """Give every model one instance, the largest first: else large ones find no room."""
        order = sorted(self._models.values(), key=lambda m: (-m.memory_bytes, m.name))
        for model in order:
            index = self._roomiest(model)
            if index is not None:
                self._add(index, model.name)

    def _next(self, late: Mapping[str, int]) -> tuple[int, str] | None:
        for name in sorted(late, key=lambda each: (-late[each], each)):
            index = self._roomiest(self._models[name])
            if index is not None:
                return index, name
        return None

    def _roomiest(self, model: Served) -> int | None:
        """Return the group with the least load per device that has room for a model."""
        able = [
            index
            for index, group in enumerate(self._groups)
            if model.name not in group.models and self._fits(model, group)
        ]
        return min(able, key=self._load, default=None)

    def _load(self, index: int) -> float:
        group = self._groups[index]
        return sum(
            self._models[name].load(part, self._instances(name)) / len(group.devices)
            for name in group.models
            for part in self._models[name].partitions
        )

    def _instances(self, name: str) -> int:
        return sum(name in group.models for group in self._groups)

    def _fits(self, model: Served, group: Group) -> bool:
        taken = _memory_bytes(spread(model, group.devices))
        return all(taken[device] <= self._left[device] for device in taken)

    def _add(self, index: int, name: str) -> None:
        group = self._groups[index]
        self._groups[index] = replace(group, models=(*group.models, name))
        self._take(name, group, 1)

    def _remove(self, index: int, name: str) -> None:
        group = self._groups[index]
        kept = tuple(each for each in group.models if each != name)
        self._groups[index] = replace(group, models=kept)
        self._take(name, group, -1)

    def _take(self, name: str, group: Group, times: int) -> None:
        for device, size in _memory_bytes(spread(self._models[name], group.devices)).items():
            self._left[device] -= times * size

    def _measure(self) -> tuple[float, Counter[str]]:
        """Return the share of requests in time, and how many of each model are not."""
        running = pipelines(tuple(self._models.values()), self._groups)
        simulation = Simulation(running, self._left)
        simulation.run(self._sample)
        late = self._requests.copy()
        for answer in simulation.answers:
            late[answer.model] -= answer.latency_s <= self._models[answer.model].slo_s
        total = sum(self._requests.values())
        return 1.0 - sum(late.values()) / max(total, 1), +late


def _memory_bytes(placed: Mapping[Partition, Device]) -> Counter[str]:
    taken: Counter[str] = Counter()
    for partition, device in placed.items():
        taken[device.name] += partition.memory_bytes
    return taken
