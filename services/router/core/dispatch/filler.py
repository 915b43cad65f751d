"""Deferrable requests of one model: admitted into the room that interactive ones leave.

Deferrable requests are those that can wait: of batches, of the service tier "flex", or with
`wait_until`. They are a class below every other: while an interactive request waits none is
admitted, and each instance holds only as many as its `Headroom` says. The earliest deadline goes
first. The busiest instance is filled first; one with few interactive requests gets as many as it
may hold, or none: a trickle would keep it awake at several times the energy of each. What an
instance has begun is never dropped: done again it would cost more than a pause of admission gains.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from services.kit.config import WaitingRules
from services.kit.errors import DeadlineExceeded, ResourceExhausted
from services.kit.units import BYTES_PER_MIB
from services.router.core.deferrable.headroom import PERIOD_S, Objective
from services.router.core.deferrable.release import ReleasePlan
from services.router.core.dispatch.decisions import Decision, Reconsider, Send
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.instance_state import InstanceState
from services.router.core.model import ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import ByteBudget, RequestQueue, by_deadline

_LOOKED_AT: Final = 16
"""Requests from the front of which one is chosen for an instance."""
_COUNTED: Final = 2048
"""Requests from the front that are counted one by one, at each report of the load."""
LEAST_AWAY_S: Final = 60.0
"""Time left to a request that leaves, s: half of it is for this region, should the peer fail."""

_GROUPS: Final = 8
_PAUSE_SLOS: Final = 0.5
_MAX_PAUSE_S: Final = 1.0
_RESUMES_AT: Final = 8
"""An eighth of its room must be free before an instance without any takes the next."""
_QUIET_SHARE: Final = 16
_QUIET: Final = 4.0
"""An instance is quiet with fewer interactive requests in the mean, or a 16th of its credits."""
_PATIENCE: Final = 0.1
"""Of the time until its deadline: for so long a request waits for company at most."""
_FULL_S: Final = 5.0
_MADE_UP_S: Final = 0.1
"""Time without a deferrable text that is made up for: more prompts at once keep an interactive
one from its first token."""
_DUE_SERVICES: Final = 3.0
_DUE_S: Final = 10.0
"""A request begins whatever the plan says so long before its deadline, or three times the time that
one takes."""


@dataclass(frozen=True, slots=True)
class WaitingBounds:
    """Rules of deferrable requests, and the memory that those of all models share."""

    rules: WaitingRules = field(default_factory=WaitingRules)
    byte_budget: ByteBudget = field(default_factory=ByteBudget)

    @classmethod
    def of(cls, rules: WaitingRules) -> "WaitingBounds":
        """Return the bounds by these rules."""
        return cls(rules, ByteBudget(int(rules.max_mib * BYTES_PER_MIB)))


class Filler:
    """Owner of one model's deferrable requests until instances have them.

    Args:
        pool: The model's instances.
        bounds: Rules, and memory.

    Attributes:
        queue: Those that no instance has.
        held_by: What holds them back; "": nothing does.
        release: How many may begin by plan.
    """

    def __init__(self, pool: InstancePool, bounds: WaitingBounds) -> None:
        self.queue = RequestQueue(by_deadline, byte_budget=bounds.byte_budget)
        self.held_by = ""
        self.release = ReleasePlan()
        self._pool = pool
        self._bounds = bounds
        self._pause_s = 0.0
        self._resumes_s = -math.inf
        self._wakes_s = math.inf

    @property
    def in_flight(self) -> int:
        """Deferrable requests that instances hold."""
        return sum(state.deferrable for state in self._pool.states.values())

    @property
    def used(self) -> bool:
        """True once there was one."""
        return self._pool.fills

    @property
    def queued_tokens(self) -> int:
        """Estimate of the tokens of those that no instance has; 0: no texts."""
        lengths = [s.headroom.tokens for s in self._pool.states.values() if s.headroom.tokens]
        if not lengths:
            return 0
        usual, first = sum(lengths) / len(lengths), self.queue.front(_LOOKED_AT)
        tokens = sum(each.kv_tokens(usual) for each in first)
        return tokens * len(self.queue) // max(len(first), 1)

    def first_due_s(self, now_s: float) -> float:
        """Return the time until the first of those that no instance has gives up, s; 0: none."""
        first = self.queue.front(1)
        return max(first[0].request.deadline_s - now_s, 0.0) if first else 0.0

    def singles(self, now_s: float) -> list[tuple[float, int]]:
        """Return those of no batch that no instance has: time left to the first, s, and number.

        At most `_GROUPS`, by deadline. Of a long queue only the front is looked at, and the rest
        counts with the last of that.
        """
        front = self.queue.front(_COUNTED)
        dues = [each.request.deadline_s for each in front if not each.request.one_of_many]
        size = -(-len(dues) // _GROUPS)
        found = [
            (max(dues[at] - now_s, 0.0), min(size, len(dues) - at))
            for at in range(0, len(dues), size or 1)
        ]
        if found:
            found[-1] = found[-1][0], found[-1][1] + len(self.queue) - len(front)
        return found

    @property
    def room(self) -> int:
        """Deferrable requests that instances may hold now."""
        return sum(self._room(state) for state in self._pool.eligible)

    @property
    def service_s(self) -> float:
        """Mean time that an instance takes for one, s; 0: not known."""
        known = [s.headroom.hold_s for s in self._pool.states.values() if s.headroom.hold_s]
        return sum(known) / len(known) if known else 0.0

    def follow(self, routes: ModelRoutes) -> None:
        """Follow the objectives of new routes."""
        self._pool.goal = Objective(
            routes.slo_latency_s or math.inf,
            routes.slo_first_token_s,
            routes.slo_token_s,
            1 - routes.slo_percentile / 100,
            self._bounds.rules.headroom,
        )
        self._pause_s = min(_PAUSE_SLOS * self._pool.goal.latency_s, _MAX_PAUSE_S)

    def admit(self, pending: PendingRequest, model: str) -> None:
        """Queue a new request.

        Raises:
            ResourceExhausted: There is no memory for it.
        """
        self._pool.fills = True
        if not self._bounds.byte_budget.fits(len(pending.request.body)):
            raise ResourceExhausted(
                f"requests that can wait take {self._bounds.byte_budget.used_bytes} bytes, this one"
                f" for model {model!r} has {len(pending.request.body)}; router.waiting.max_mib"
                f" allows {self._bounds.rules.max_mib:g} MiB",
                reason="WAITING_FULL",
                retry_after_s=min(self.service_s or _FULL_S, _FULL_S),
            )
        self.queue.push(pending)

    def expired(self, pending: PendingRequest, model: str) -> DeadlineExceeded:
        """Return the error of a request whose time is over before an instance had it."""
        request = pending.request
        return DeadlineExceeded(
            f"the request waited {request.deadline_s - request.arrived_s:.0f} s for room beside"
            f" other requests of model {model!r}, and its wait_until has passed"
            + (f": {self.held_by}" if self.held_by else ""),
            reason="WAIT_UNTIL",
        )

    def may_leave(self, most: int, now_s: float) -> list[PendingRequest]:
        """Return the first requests that may run in a peer region, as much as time is left to them.

        Args:
            most: Their number at most.
            now_s: The time.
        """
        found = (
            each
            for each in self.queue.front(_COUNTED if most > 0 else 0)
            if each.request.deadline_s - now_s > LEAST_AWAY_S and not each.refusals
        )
        return list(islice(found, max(most, 0)))

    def woke(self) -> None:
        """Note that the time of a `Reconsider` has come."""
        self._wakes_s = math.inf

    def fill(self, model: str, now_s: float, *, paused: bool) -> list[Decision]:
        """Admit what there is room for; say when to call again, where that depends on time.

        Args:
            model: The model.
            now_s: The time.
            paused: An interactive request waits.
        """
        if not self.queue.places:
            return []
        decisions: list[Decision] = []
        if paused:
            self._resumes_s = now_s + self._pause_s
            self.held_by = "interactive requests wait for an instance"
        elif now_s >= self._resumes_s and self._released(now_s):
            self.held_by = "interactive requests leave no room"
            for state in self._ranked(now_s):
                decisions += self._fill_one(state, now_s)
                if not self.queue.places:
                    self.held_by = ""
                    return decisions
        return [*decisions, *self._wake(model, now_s)]

    # ---- inside --------------------------------------------------------------------------------

    def _ranked(self, now_s: float) -> list[InstanceState]:
        """Return instances in the order in which they are filled: the busiest first."""

        def key(state: InstanceState) -> tuple[bool, float, str]:
            quiet = _is_quiet(state) and now_s >= state.headroom.closes_s
            return quiet, -round(state.headroom.peak.mean), state.instance.endpoint

        return sorted(self._pool.eligible, key=key)

    def _fill_one(self, state: InstanceState, now_s: float) -> Iterator[Decision]:
        headroom = state.headroom
        headroom.peak.hold(state.interactive, now_s)
        headroom.adjust(state.deferrable, now_s, self._pool.goal)
        room = self._room(state)
        left = room - state.deferrable
        if left <= 0:
            headroom.paused = state.deferrable > 0
            return
        if headroom.paused and left < max(room // _RESUMES_AT, 1):
            return
        headroom.paused = False
        closed = now_s >= headroom.closes_s and _is_quiet(state)
        if closed and not self._worth_opening(left, now_s):
            self.held_by = "requests are collected until they fill an instance"
            return
        while left > 0 and now_s >= headroom.next_s and self._released(now_s):
            pending = next(self._suitable(state), None)
            if pending is None:
                return
            self.release.spend()
            self.queue.remove(pending)
            self._pool.hold(state, pending, now_s)
            if not state.in_batches:
                headroom.next_s = max(headroom.next_s, now_s - _MADE_UP_S) + headroom.interval_s(
                    self._pool.goal
                )
            left -= 1
            headroom.closes_s = now_s + self._bounds.rules.patience_s
            yield Send(state.instance, pending)

    def _released(self, now_s: float) -> bool:
        """Return whether one may begin by plan, or because it is due."""
        if not self.queue.places:
            return False
        deadline_s = self.queue.front(1)[0].request.deadline_s
        if self.release.budget(now_s, deadline_s) >= 1:
            return True
        due_s = max(_DUE_SERVICES * self.service_s, _DUE_S)
        if deadline_s - now_s <= due_s:
            return True
        period = self.release.now(now_s)
        self.held_by = f"held by plan: {period.why}" if period and period.why else "held by plan"
        return False

    def _room(self, state: InstanceState) -> int:
        return state.headroom.room(state.interactive, state.credits, state.most, self._pool.goal)

    def _worth_opening(self, room: int, now_s: float) -> bool:
        """Return whether enough waits to fill an instance, or the first has waited long enough."""
        first = self.queue.front(1)[0].request
        patience_s = min(
            self._bounds.rules.patience_s, _PATIENCE * (first.deadline_s - first.arrived_s)
        )
        return len(self.queue) >= room or now_s >= first.arrived_s + patience_s

    def _suitable(self, state: InstanceState) -> Iterator[PendingRequest]:
        """Yield requests of the queue's front that an instance may be given."""
        held = state.interactive
        reserved = state.headroom.peak.reserve(held, state.credits) - held
        for pending in self.queue.front(_LOOKED_AT):
            if pending.request.accuracy_floor > state.instance.accuracy:
                continue
            if state.instance.id in (pending.refusals or ()):
                continue
            if pending.deaths and state.holds_suspect:
                continue
            if not pending.predicted_tokens and state.headroom.tokens:
                pending.predict_tokens(state.headroom.tokens)
            if state.has_tokens_for(pending, reserved):
                yield pending

    def _wake(self, model: str, now_s: float) -> Iterator[Decision]:
        """Say when to call again: an instance may take one more, or AIMD has a step to take."""
        at_s = min(
            (
                s.headroom.next_s
                for s in self._pool.eligible
                if s.headroom.next_s > now_s and self._room(s) > s.deferrable
            ),
            default=now_s + PERIOD_S,
        )
        at_s = max(min(at_s, now_s + PERIOD_S), self._resumes_s)
        if not now_s < self._wakes_s <= at_s:
            self._wakes_s = at_s
            yield Reconsider(model, at_s)


def _is_quiet(state: InstanceState) -> bool:
    mean = state.headroom.peak.mean
    return mean < _QUIET and mean * _QUIET_SHARE < state.credits
