"""A set of jobs in virtual time; the router's policies decide."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from benchmarks.carbondis.baselines import HighPerf, LowEnergy
from benchmarks.carbondis.pool import Job, JobStart, Pool
from benchmarks.carbondis.profiles import A100, GpuClass
from benchmarks.carbondis.setting import (
    J_PER_KWH,
    PAPERS,
    REQUESTS,
    Arrivals,
    Grid,
    Load,
    Set,
    grid,
    load,
)
from benchmarks.carbondis.shared import (
    DyBatch,
    InTurn,
    RandomJob,
    SharedCarbonAware,
    SharedGpu,
    SharedPolicy,
    by_violations,
)
from services.router.core.balancing.carbondis import Carbondis
from services.router.core.balancing.policy import Gpu

PERCENTILE = 95


@dataclass(frozen=True, slots=True)
class Work:
    """Requests of a set of jobs that a policy has to serve.

    Attributes:
        jobs: The set.
        loads: Requests of each job.
        scales: Of each job's model.
        grid: The jobs' grid.
    """

    jobs: Set
    loads: tuple[Load, ...]
    scales: tuple[float, ...]
    grid: Grid

    @property
    def slos_s(self) -> tuple[float, ...]:
        """Latency constraints, s."""
        return tuple(row.slo_ms / 1e3 for row in self.jobs.jobs)


@dataclass(frozen=True, slots=True)
class Case:
    """A set under one load.

    Attributes:
        jobs: The set.
        arrivals: Process of the requests' arrivals.
        requests: Of each job.
        rate: Over Table V's.
        tightness: Time that a low-end GPU needs at mean batch + 1 std, over the SLO.
        policies: Names of those to compare; empty: all.
        seed: Of the draw of requests.
    """

    jobs: Set
    arrivals: Arrivals = PAPERS
    requests: int = REQUESTS
    rate: float = 1.0
    tightness: float = 1.0
    policies: tuple[str, ...] = ()
    seed: int = 0


def work(case: Case) -> Work:
    """Draw the requests of a case."""
    rng = np.random.default_rng(case.seed)
    jobs, rate = case.jobs, case.rate
    loads = tuple(load(row, case.arrivals, case.requests, rng) for row in jobs.jobs)
    faster = tuple(Load(each.arrived_s / rate, each.sizes) for each in loads)
    scales = tuple(row.scale(jobs.low, case.tightness) for row in jobs.jobs)
    step_s = 3600.0 * case.requests / REQUESTS / rate  # the same hours pass, whatever the work
    return Work(jobs, faster, scales, grid(jobs, step_s))


@dataclass(frozen=True, slots=True)
class Fleet:
    """GPUs that are powered.

    Attributes:
        low: Jobs that have a low-end GPU of their own.
        high: High-end GPUs; all jobs share them.
        own_high: Instead, each job has one of its own (HIGHPERF).
    """

    low: tuple[int, ...]
    high: int
    own_high: bool = False


MIXED = Fleet((0, 1, 2, 3, 4), 1)
ALL_HIGH = Fleet((), 5, own_high=True)
ALL_LOW = Fleet((0, 1, 2, 3, 4), 0)

POLICIES: dict[str, tuple[Fleet, Callable[[], SharedPolicy]]] = {
    "highperf": (ALL_HIGH, lambda: InTurn(HighPerf())),
    "lowenergy": (ALL_LOW, lambda: InTurn(LowEnergy())),
    "dybatch": (MIXED, DyBatch),
    "random": (MIXED, lambda: RandomJob(5, Random(7))),
    "carbondis": (MIXED, lambda: InTurn(Carbondis(), by_violations)),
    "carbon-aware": (MIXED, SharedCarbonAware),
}


@dataclass(slots=True)
class Run:
    """Record of a simulation.

    Attributes:
        work: The requests served.
        latencies_s: Of each job's requests.
        active_gco2e: Emissions above idle power.
        high_use: Requests of each job that a high-end GPU served.
        busy_s: Time that each GPU computed.
        ends_s: End of each job.
        powered: Each GPU's class, and its job where it has one.
    """

    work: Work
    latencies_s: list[list[float]]
    high_use: list[int]
    powered: list[tuple[GpuClass, int | None]]
    ends_s: list[float]
    active_gco2e: float = 0.0
    computing_gco2e: list[float] = field(default_factory=list)

    def tails_s(self) -> NDArray[np.float64]:
        """Return the 95th percentile of each job, s."""
        return np.array([np.percentile(each, PERCENTILE) for each in self.latencies_s])

    def slo_met(self) -> list[bool]:
        """Return which jobs keep their constraint."""
        return [
            bool(tail <= slo) for tail, slo in zip(self.tails_s(), self.work.slos_s, strict=True)
        ]

    def late(self) -> tuple[int, ...]:
        """Return how many requests of each job missed its constraint."""
        return tuple(
            sum(latency > slo for latency in each)
            for each, slo in zip(self.latencies_s, self.work.slos_s, strict=True)
        )

    def percentiles_ms(self, job: int) -> tuple[float, ...]:
        """Return a job's latencies at each percentile 0..100, ms."""
        return tuple((1e3 * np.percentile(self.latencies_s[job], range(101))).tolist())

    def baseline_gco2e(self, *, own_end: bool = False) -> float:
        """Return the emissions of idle power, drawn all the time.

        Args:
            own_end: A job's own GPU is switched off once the job is done, not at the common end.
        """
        return sum(
            gpu.idle_w * self.work.grid.total(0.0, self._until_s(job, own_end=own_end)) / J_PER_KWH
            for gpu, job in self.powered
        )

    def carbon_gco2e(self, *, own_end: bool = False) -> float:
        """Return all emissions."""
        return self.active_gco2e + self.baseline_gco2e(own_end=own_end)

    def idle_gco2e(self) -> float:
        """Return the emissions while GPUs compute nothing (Eq. 4); to the common end."""
        return self.baseline_gco2e() - sum(self.computing_gco2e)

    def _until_s(self, job: int | None, *, own_end: bool) -> float:
        return self.ends_s[job] if own_end and job is not None else max(self.ends_s)


def run(todo: Work, fleet: Fleet, policy: SharedPolicy) -> Run:
    """Simulate a policy that serves a set."""
    return _Simulation(todo, fleet, policy).run()


class _Simulation:
    def __init__(self, todo: Work, fleet: Fleet, policy: SharedPolicy) -> None:
        self._todo, self._grid = todo, todo.grid
        powered: list[tuple[GpuClass, int | None]] = [(todo.jobs.low, job) for job in fleet.low]
        powered += [(A100, job if fleet.own_high else None) for job in range(fleet.high)]
        gpus = [SharedGpu(number, kind.rank) for number, (kind, _) in enumerate(powered)]
        jobs = [
            Job(slo_s, tuple(g for g in gpus if powered[g.key][1] in (None, job)))
            for job, slo_s in enumerate(todo.slos_s)
        ]
        for gpu in gpus:
            gpu.jobs = sum(gpu in job.gpus for job in jobs)
        self._pool = Pool(policy, jobs)
        self._costs = [_costs(todo.scales, kind) for kind, _ in powered]
        self._running: list[tuple[float, int, JobStart, float, float]] = []
        self._begun = 0
        count = len(todo.jobs.jobs)
        self._run = Run(todo, [[] for _ in range(count)], [0] * count, powered, [0.0] * count)
        self._run.computing_gco2e = [0.0] * len(powered)

    def run(self) -> Run:
        """Go from event to event."""
        arrivals = _merged(self._todo.loads)
        index, last = 0, len(arrivals)
        infinity = float("inf")
        while index < last or self._running:
            came_s = arrivals[index][0] if index < last else infinity
            done_s = self._running[0][0] if self._running else infinity
            again_s = self._pool.again_s
            now_s = min(came_s, done_s)
            if again_s is not None and again_s < now_s:
                now_s = again_s
            elif done_s <= came_s:
                self._finish()
            else:
                _, job, size = arrivals[index]
                index += 1
                self._pool.arrive(job, size, now_s, self._per_joule(now_s))
            self._decide(now_s)
        return self._run

    def _per_joule(self, now_s: float) -> Callable[[Gpu], float]:
        intensity = self._grid.at(now_s) / J_PER_KWH
        return lambda _: intensity

    def _decide(self, now_s: float) -> None:
        for start in self._pool.decide(now_s, self._grid.ratio(now_s)):
            gpu = start.placement.gpu.key
            latency_s, added_j = self._costs[gpu][start.queued.job][start.queued.size]
            self._begun += 1
            heapq.heappush(
                self._running, (now_s + latency_s, self._begun, start, latency_s, added_j)
            )
            intensity = self._grid.at(now_s) / J_PER_KWH
            kind = self._run.powered[gpu][0]
            self._run.active_gco2e += added_j * intensity
            self._run.computing_gco2e[gpu] += kind.idle_w * latency_s * intensity
            self._run.high_use[start.queued.job] += kind.rank > 0

    def _finish(self) -> None:
        now_s, _, start, latency_s, added_j = heapq.heappop(self._running)
        self._pool.done(start, now_s, latency_s, added_j)
        job = start.queued.job
        self._run.latencies_s[job].append(now_s - start.queued.arrived_s)
        self._run.ends_s[job] = now_s


def _costs(scales: Sequence[float], kind: GpuClass) -> list[list[tuple[float, float]]]:
    """Return latency, s, and energy above idle power, J, by job and size."""
    return [
        [(kind.latency_s(size, scale), kind.added_j(size, scale)) for size in range(129)]
        for scale in scales
    ]


def _merged(loads: Sequence[Load]) -> list[tuple[float, int, int]]:
    return sorted(
        (at_s, job, size)
        for job, each in enumerate(loads)
        for at_s, size in zip(each.arrived_s.tolist(), each.sizes.tolist(), strict=True)
    )


def bound_gco2e(todo: Work, fleet: Fleet = MIXED, *, own_end: bool = False) -> float:
    """Return a lower bound on what any policy emits on a fleet.

    Every request costs the least that it can on any class, however the others are served, and
    idle power is drawn until the last request of each job, served at once where it is quickest.
    """
    classes = ([todo.jobs.low] if fleet.low else []) + ([A100] if fleet.high else [])
    active, ends_s = 0.0, []
    for each, scale in zip(todo.loads, todo.scales, strict=True):
        least_j = [min(kind.added_j(size, scale) for kind in classes) for size in range(129)]
        active += sum(
            least_j[size] * todo.grid.at(at_s)
            for at_s, size in zip(each.arrived_s.tolist(), each.sizes.tolist(), strict=True)
        )
        quickest_s = min(kind.latency_s(int(each.sizes[-1]), scale) for kind in classes)
        ends_s.append(float(each.arrived_s[-1]) + quickest_s)
    common_s = max(ends_s)
    idle = sum(
        todo.jobs.low.idle_w * todo.grid.total(0.0, ends_s[job] if own_end else common_s)
        for job in fleet.low
    )
    idle += fleet.high * A100.idle_w * todo.grid.total(0.0, common_s)
    return (active + idle) / J_PER_KWH
