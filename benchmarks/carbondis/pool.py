"""GPUs that several jobs share: queues, histories, violations, and a policy that decides."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.carbondis.shared import JobRequest, SharedGpu, SharedPolicy, SharedView
from services.router.core.balancing.latency_history import LatencyHistory
from services.router.core.balancing.policy import Gpu, Placement

_COUNT_ON = 2.0
"""Mean deviations above the mean that an answer can be counted on to come within."""

_RECENT = 1 / 512  # weight of the newest request in the share of late ones

_STALE_S = 30.0
"""Without an answer for so long a job has nothing late, and no other job yields to it."""

Intensity = Callable[[Gpu], float]
"""Carbon intensity where a GPU is, gCO2e/J."""


class JobStart(NamedTuple):
    """A request of a job that has begun, and where."""

    queued: JobRequest
    placement: Placement


@dataclass(frozen=True, slots=True)
class Job:
    """A model with a constraint.

    Attributes:
        constraint_s: Latency that its requests must keep (LC), s.
        gpus: Those that may serve it.
    """

    constraint_s: float
    gpus: tuple[SharedGpu, ...]


@dataclass(slots=True)
class Pool:
    """Decides for several jobs.

    Attributes:
        policy: Decides which request runs where.
        jobs: By index.
        violations: Requests that missed their constraint, by job.
        late: Share of the recent requests that missed it, by job.
        again_s: Latest time of the policy's next decision; None: at the next event.
    """

    policy: SharedPolicy
    jobs: Sequence[Job]
    violations: list[int] = field(init=False)
    late: list[float] = field(init=False)
    again_s: float | None = None
    _answered: list[int] = field(init=False)
    _answered_s: list[float] = field(init=False)
    _queues: tuple[deque[JobRequest], ...] = field(init=False)
    _histories: dict[tuple[int, int], LatencyHistory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.violations = [0] * len(self.jobs)
        self.late = [0.0] * len(self.jobs)
        self._answered = [0] * len(self.jobs)
        self._answered_s = [0.0] * len(self.jobs)
        self._queues = tuple(deque() for _ in self.jobs)

    def arrive(self, job: int, size: int, now_s: float, intensity: Intensity) -> None:
        """Add a request to those that wait; `decide` returns which begins."""
        wanted = self.jobs[job]
        placements = tuple(self._placement(job, gpu, size, intensity) for gpu in wanted.gpus)
        queued = JobRequest(size, now_s, now_s + wanted.constraint_s, placements, job)
        self._queues[job].append(queued)

    def done(self, start: JobStart, now_s: float, latency_s: float, energy_j: float) -> None:
        """Learn from an answered request, and free its GPU.

        Args:
            start: As `decide` returned it.
            now_s: The time.
            latency_s: Processing time.
            energy_j: Energy above idle power.
        """
        queued, gpu = start.queued, start.placement.gpu
        gpu.busy = False
        late = now_s > queued.due_s
        self.violations[queued.job] += late
        self._forget_stale(now_s)
        self._answered[queued.job] += 1
        self._answered_s[queued.job] = now_s
        weight = max(1 / self._answered[queued.job], _RECENT)
        self.late[queued.job] += weight * (late - self.late[queued.job])
        history = self._histories.setdefault((queued.job, gpu.rank), LatencyHistory())
        history.add(queued.size, latency_s, energy_j)

    def decide(self, now_s: float, intensity_ratio: float) -> list[JobStart]:
        """Return what begins now; their GPUs are busy from here on."""
        self._forget_stale(now_s)
        starts: list[JobStart] = []
        tightest_s = min(job.constraint_s for job in self.jobs)
        view = SharedView(
            now_s, intensity_ratio, self._queues, self.violations, self.late, tightest_s
        )
        while True:
            start, self.again_s = self.policy.decide(view)
            if start is None:
                return starts
            queued, placement = start
            assert isinstance(queued, JobRequest)
            self._queues[queued.job].remove(queued)
            placement.gpu.busy = True
            placement.gpu.free_s = now_s + placement.latency_s
            starts.append(JobStart(queued, placement))

    def _forget_stale(self, now_s: float) -> None:
        for job, answered_s in enumerate(self._answered_s):
            if now_s - answered_s > _STALE_S:
                self.late[job] = 0.0

    def _placement(self, job: int, gpu: Gpu, size: int, intensity: Intensity) -> Placement:
        """Return the expectation; a GPU never tried is taken to be immediate and free."""
        history = self._histories.get((job, gpu.rank))
        known = history.estimate(size) if history else None
        if known is None:
            return Placement(gpu, 0.0, 0.0, 0.0, 0.0)
        likely_s = known.latency_s + _COUNT_ON * known.deviation_s
        carbon_gco2e = known.energy_j * intensity(gpu)
        return Placement(gpu, known.latency_s, likely_s, carbon_gco2e, known.latency_s)
