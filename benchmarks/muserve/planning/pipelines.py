"""Pipelines on shared devices in virtual time: fast enough to guide a search.

Every instance of a model is a pipeline of stages. Each stage serves one request at a time, in order
of their rank (first come, first served, unless somebody ranks them otherwise); stages of different
models on one device run side by side and share it evenly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf

from benchmarks.muserve.planning.model import Device, Partition, Served
from benchmarks.muserve.planning.shared_device import SharedDevice


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of an instance on one device.

    Attributes:
        device: Name of the device.
        latency_s: Of the reference request, alone at the highest clock, s.
        sensitivity: Of the latency to the clock, 0..1.
        transfer_s: Time to hand a request on to the next stage, s.
    """

    device: str
    latency_s: float
    sensitivity: float = 1.0
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One instance of a model. Attributes: model; stages in order, neighbours on other devices."""

    model: str
    stages: tuple[Stage, ...]


def pipeline(model: Served, where: Mapping[Partition, Device]) -> Pipeline:
    """Return the instance of a model whose partitions are placed; neighbours become one stage."""
    stages: list[Stage] = []
    for part in model.partitions:
        new = Stage(where[part].name, part.latency_s, part.sensitivity, part.transfer_s)
        if stages and stages[-1].device == new.device:
            old = stages.pop()
            total_s = old.latency_s + new.latency_s
            mean = (old.sensitivity * old.latency_s + new.sensitivity * new.latency_s) / total_s
            new = replace(new, latency_s=total_s, sensitivity=min(mean, 1.0))
        stages.append(new)
    return Pipeline(model.name, (*stages[:-1], replace(stages[-1], transfer_s=0.0)))


@dataclass(frozen=True, slots=True)
class Job:
    """A request.

    Attributes:
        at_s: Arrival time, s.
        model: The model that it is for.
        size: Work relative to the reference request.
        rank: The least is served first; None: in order of arrival.
    """

    at_s: float
    model: str
    size: float = 1.0
    rank: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answered request. Attributes: when, s; by which model; after how long, s; how large."""

    at_s: float
    model: str
    latency_s: float
    size: float


@dataclass(slots=True)
class _Task:
    """A request inside an instance."""

    job: Job
    route: _Route
    stage: int = 0
    left_s: float = 0.0

    @property
    def here(self) -> Stage:
        """The stage that it waits for or is at."""
        return self.route.pipeline.stages[self.stage]

    @property
    def sensitivity(self) -> float:
        """Return the latency's sensitivity to the clock, 0..1."""
        return self.here.sensitivity


@dataclass(slots=True)
class _Route:
    """An instance: per stage, who waits and whether it is busy; and how many requests it has."""

    pipeline: Pipeline
    waiting: list[list[tuple[float, int, _Task]]]
    busy: list[bool]
    inside: int = 0


class Simulation:
    """Serves a stream of requests.

    Args:
        pipelines: The instances.
        devices: Names.

    Attributes:
        answers: In order of their time.
        devices: By name.
        now_s: Time, s.
    """

    def __init__(self, pipelines: Iterable[Pipeline], devices: Iterable[str]) -> None:
        self.answers: list[Answer] = []
        self.devices: dict[str, SharedDevice[_Task]] = {name: SharedDevice() for name in devices}
        self.now_s = 0.0
        self._routes: dict[str, list[_Route]] = {}
        for each in pipelines:
            stages = len(each.stages)
            route = _Route(each, [[] for _ in range(stages)], [False] * stages)
            self._routes.setdefault(each.model, []).append(route)
        self._events: list[tuple[float, int, SharedDevice[_Task] | _Task, int]] = []
        self._numbers = count()

    def run(
        self,
        jobs: Sequence[Job],
        *,
        every_s: float = inf,
        until_s: float = 0.0,
        look: Callable[[Simulation], None] = lambda _: None,
    ) -> None:
        """Serve all requests of models that have an instance.

        Args:
            jobs: In order of arrival.
            every_s: Period of the checks, s.
            until_s: Look on until then, although nothing is left to serve, s.
            look: Called with the simulation; it may set clocks.
        """
        look_s, coming = every_s, 0
        while coming < len(jobs) or self._events or look_s <= until_s:
            next_s = jobs[coming].at_s if coming < len(jobs) else inf
            event_s = self._events[0][0] if self._events else inf
            self.now_s = min(next_s, event_s, look_s)
            if self.now_s == event_s:
                self._happen()
            elif self.now_s == next_s:
                self._arrive(jobs[coming])
                coming += 1
            else:
                look(self)
                look_s += every_s
        for device in self.devices.values():
            device.catch_up(self.now_s)

    def set_clock(self, name: str, clock_ratio: float) -> None:
        """Change a device's clock, as of now."""
        device = self.devices[name]
        if clock_ratio != device.clock_ratio:
            device.run_at(clock_ratio, self.now_s)
            self._foresee(device)

    def _arrive(self, job: Job) -> None:
        routes = self._routes.get(job.model)
        if routes:
            route = min(routes, key=lambda each: each.inside)
            route.inside += 1
            self._enter(_Task(job, route))

    def _happen(self) -> None:
        _, _, what, version = heapq.heappop(self._events)
        if isinstance(what, _Task):
            self._enter(what)
        elif version == what.version:
            task = what.end(self.now_s)
            self._leave(task)
            self._foresee(what)

    def _enter(self, task: _Task) -> None:
        """A request comes to a stage."""
        route, stage = task.route, task.stage
        if route.busy[stage]:
            rank = task.job.at_s if task.job.rank is None else task.job.rank
            heapq.heappush(route.waiting[stage], (rank, next(self._numbers), task))
        else:
            self._start(task)

    def _start(self, task: _Task) -> None:
        device = self.devices[task.here.device]
        task.route.busy[task.stage] = True
        task.left_s = task.job.size * task.here.latency_s
        device.begin(task, self.now_s)
        self._foresee(device)

    def _leave(self, task: _Task) -> None:
        """A request has finished a stage: it continues, and the next one may start."""
        route, stage = task.route, task.stage
        route.busy[stage] = False
        if route.waiting[stage]:
            self._start(heapq.heappop(route.waiting[stage])[2])
        if stage + 1 < len(route.pipeline.stages):
            arrives_s = self.now_s + task.here.transfer_s
            task.stage += 1
            self._push(arrives_s, task)
        else:
            route.inside -= 1
            job = task.job
            self.answers.append(Answer(self.now_s, job.model, self.now_s - job.at_s, job.size))

    def _foresee(self, device: SharedDevice[_Task]) -> None:
        """Say when the next request is done on a device, as things are."""
        end_s = device.next_end_s()
        if end_s < inf:
            self._push(end_s, device, device.version)

    def _push(self, at_s: float, what: SharedDevice[_Task] | _Task, version: int = 0) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), what, version))
