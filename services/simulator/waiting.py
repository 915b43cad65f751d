"""Requests that can wait, in virtual time: the batch service's and the planner's own cores.

Lines wait here as in a batch service's database. The planner's `WaitingWork` says when they run,
the batch service's `Releases` and `Admission` how many are with the router at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from simpy import Event

from cinquefoil.planner.v1 import waiting_pb2
from cinquefoil.planner.v1.records import WaitingBucket, WaitingModel
from services.batch.core.admission import Admission
from services.batch.core.releases import Releases
from services.kit.errors import DeadlineExceeded, ResourceExhausted, ServiceError
from services.kit.rpc.record_mapping import to_message
from services.kit.units import carbon_gco2e
from services.planner.core.cycle.environment import Clock
from services.planner.core.cycle.waiting_work import MAX_BUCKETS, WaitingWork
from services.router.adapters.convert import to_releases
from services.router.core.accounting.account import Ended
from services.router.core.pending_request import PendingRequest
from services.simulator.router import Router
from services.simulator.stats.sampled_intervals import Recorder, WaitingCounts
from services.simulator.timeline import Timeline, Waiting

_REPORT_S: Final = 5.0
"""Longest time between two reports to the planner, s; it decides with each."""

_PAUSE_S: Final = 1.0
"""Shortest time between two decisions, s."""

_LOOK_S: Final = 0.5
_MOST_IN_FLIGHT: Final = 1024
_RETRY_S: Final = 1.0
_REPORTER: Final = "batch"


class Line(NamedTuple):
    """A request. Attributes: arrived_s, tokens (of prompt and answer; None: no text)."""

    arrived_s: float
    tokens: tuple[int, int] | None


@dataclass(eq=False)
class WaitingModelDemand:
    """One model's requests that can wait.

    Attributes:
        model: The model.
        arrivals_s: When they come, s, in order.
        lengths: Tokens of each, if they are texts.
        window_s: Time in which each is answered, s.
        speedup: Grid seconds per second: windows pass as fast.
    """

    model: str
    arrivals_s: NDArray[np.float64]
    lengths: NDArray[np.int64] | None
    window_s: float
    speedup: float
    left: deque[Line] = field(default_factory=deque)
    open: dict[int, Line] = field(default_factory=dict)
    admission: Admission = field(default_factory=lambda: Admission(_MOST_IN_FLIGHT))
    wake: Event | None = None
    answered: int = 0

    @property
    def due_after_s(self) -> float:
        """Time from a request's arrival until it is due, virtual time, s."""
        return self.window_s / self.speedup

    def waits(self) -> list[Line]:
        """Return everything without an answer, in order of arrival."""
        return sorted([*self.open.values(), *self.left])

    def rouse(self) -> None:
        """Wake the sender."""
        if self.wake is not None and not self.wake.triggered:
            self.wake.succeed()


class WaitingDemand:
    """All requests that can wait.

    Args:
        demands: By model.
        timeline: Time.
        clock: The same as the planner sees it.
        router: Takes them.
        recorder: Counts them.
        work: Says when they run; None: at once, as the router has room.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # one argument per collaborator, all made in run.py
        self,
        demands: Sequence[WaitingModelDemand],
        timeline: Timeline,
        clock: Clock,
        router: Router,
        recorder: Recorder,
        work: WaitingWork | None,
    ) -> None:
        self._demands, self._router, self._recorder = demands, router, recorder
        self._time, self._clock, self._work = timeline, clock, work
        self._releases = Releases()
        self._numbers = count()
        self._begun = timeline.env.event()

    def processes(self) -> Iterator[Waiting]:
        """Yield what runs for ever."""
        for each in self._demands:
            yield self._arrive(each)
            yield self._send(each)
        if self._work is not None and self._demands:
            yield self._decide(self._work)

    def open(self) -> dict[str, int]:
        """Return the requests without an answer, by model."""
        return {each.model: len(each.left) + len(each.open) for each in self._demands}

    def _arrive(self, demand: WaitingModelDemand) -> Waiting:
        counts, env = self._counts(demand), self._time.env
        for index, at_s in enumerate(demand.arrivals_s.tolist()):
            yield env.timeout(max(at_s - env.now, 0.0))
            tokens = None if demand.lengths is None else tuple(demand.lengths[index].tolist())
            demand.left.append(Line(env.now, tokens))
            counts.sent += 1
            demand.rouse()
            if len(demand.left) + len(demand.open) == 1 and not self._begun.triggered:
                self._begun.succeed()

    def _send(self, demand: WaitingModelDemand) -> Waiting:
        env = self._time.env
        while True:
            if demand.left:
                self._send_some(demand)
            demand.wake = env.event()
            yield demand.wake | env.timeout(_LOOK_S) if demand.left else demand.wake

    def _send_some(self, demand: WaitingModelDemand) -> None:
        now_s, now = self._time.monotonic(), self._clock.now()
        while demand.left and demand.left[0].arrived_s + demand.window_s <= now_s:
            demand.left.popleft()
            self._counts(demand).late += 1
        while demand.left:
            first_s = demand.left[0].arrived_s
            due = now + timedelta(seconds=first_s + demand.window_s - now_s)
            free = demand.admission.free(now_s)
            if min(free, self._releases.allowed(demand.model, due, now, now_s)) <= 0:
                return
            if not self._offer(demand, demand.left.popleft()):
                return
            self._releases.sent(demand.model, due, 1, now, now_s)

    def _offer(self, demand: WaitingModelDemand, line: Line) -> bool:
        """Give a request to the router; return whether it has taken it."""
        number, sent_s = next(self._numbers), self._time.monotonic()

        def done(pending: PendingRequest, ended: Ended) -> None:
            demand.admission.in_flight -= 1
            del demand.open[number]
            if isinstance(ended, ServiceError):
                self._failed(demand, line, ended)
            else:
                now_s = self._time.monotonic()
                demand.admission.answered(pending.queue_s, now_s - sent_s)
                demand.answered += 1
                self._count(demand, line, pending, ended)
            demand.rouse()

        demand.open[number] = line
        demand.admission.in_flight += 1
        deadline_s = line.arrived_s + demand.window_s
        try:
            self._router.infer_waiting(demand.model, deadline_s, line.tokens, done)
        except ResourceExhausted as error:
            del demand.open[number]
            demand.admission.in_flight -= 1
            demand.admission.refused(sent_s, error.retry_after_s or _RETRY_S)
            demand.left.appendleft(line)
            return False
        return True

    def _failed(self, demand: WaitingModelDemand, line: Line, error: ServiceError) -> None:
        if isinstance(error, DeadlineExceeded):
            self._counts(demand).late += 1
        else:  # its instance is gone: again
            demand.left.appendleft(line)

    def _count(
        self, demand: WaitingModelDemand, line: Line, pending: PendingRequest, ended: Ended
    ) -> None:
        if isinstance(ended, ServiceError):
            return
        counts, now_s, instance = self._counts(demand), self._time.monotonic(), ended.instance
        counts.answered += 1
        counts.late += now_s > line.arrived_s + demand.due_after_s
        counts.waited_s += now_s - line.arrived_s
        cost = ended.result.cost
        marginal_j = pending.marginal_j
        if marginal_j is None:
            marginal_j = cost.energy_j if cost else 0.0
        counts.energy_j += cost.energy_j if cost else 0.0
        counts.output_tokens += cost.usage.output_tokens if cost and cost.usage else 0
        counts.energy_marginal_j += marginal_j
        wall_j = marginal_j * instance.pue
        intensity = self._recorder.intensity_gco2e_per_kwh[instance.zone]
        then = self._recorder.intensity_at(instance.zone, line.arrived_s)
        counts.carbon_marginal_gco2e += carbon_gco2e(wall_j, intensity)
        counts.at_once_gco2e += carbon_gco2e(wall_j, then)

    def _counts(self, demand: WaitingModelDemand) -> WaitingCounts:
        return self._recorder.waiting.setdefault(demand.model, WaitingCounts())

    # ---- the planner ---------------------------------------------------------------------------

    def _decide(self, work: WaitingWork) -> Waiting:
        env = self._time.env
        while True:
            waiting = [each for each in self._demands if each.left or each.open]
            work.report([self._report(each) for each in waiting], _REPORTER)
            releases = work.update()
            self._releases.hear(releases, 1)
            messages = [to_message(each, waiting_pb2.WaitingRelease) for each in releases]
            since_s = self._clock.now().timestamp() - self._clock.monotonic()
            self._router.release(to_releases(messages, since_s))  # as over the wire
            for each in self._demands:
                each.rouse()
            yield env.timeout(_PAUSE_S)
            self._begun = env.event()
            if all(each in waiting for each in self._demands if each.left):
                yield self._begun | env.timeout(_REPORT_S)

    def _report(self, demand: WaitingModelDemand) -> WaitingModel:
        now, now_s, window = self._clock.now(), self._time.monotonic(), demand.window_s
        lines = demand.waits()
        size = -(-len(lines) // MAX_BUCKETS) or 1
        return WaitingModel(
            model=demand.model,
            buckets=tuple(
                WaitingBucket(
                    due=now + timedelta(seconds=lines[at].arrived_s + window - now_s),
                    window=timedelta(seconds=window),
                    requests=min(size, len(lines) - at),
                )
                for at in range(0, len(lines), size)
            ),
            answered=demand.answered,
            in_flight=len(demand.open),
        )
