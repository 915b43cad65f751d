"""Hedging: requests that take long go to a second instance, and past instances that are silent."""

import math
from collections.abc import Sequence
from typing import Final

from services.router.core.balancing.weigher import CarbonSignal
from services.router.core.dispatch.assignment import Assignment
from services.router.core.dispatch.decisions import Decision, Send, Withdraw
from services.router.core.dispatch.filler import WaitingBounds
from services.router.core.dispatch.retry_budget import RetryBudget
from services.router.core.instance_state import InstanceState
from services.router.core.model import InstanceId, Limits, ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import ByteBudget

HEDGE_TRIES: Final = 4
"""Times that a request may be hedged within the time after which it is hedged first."""


class Hedging(Assignment):
    """Gives requests to further instances, within the budget of retries.

    Where a loss must be survived, an instance is silent once it holds a request that is older than
    the objective, and has answered nothing for as long as it usually takes. No request waits for
    silent instances alone; never do more than two have it.

    Attributes:
        hedges: A request may go to a second instance: `second_after_s` says when.
    """

    def __init__(
        self,
        routes: ModelRoutes,
        limits: Limits,
        byte_budget: ByteBudget | None = None,
        carbon: CarbonSignal | None = None,
        bounds: WaitingBounds | None = None,
    ) -> None:
        super().__init__(routes, limits, byte_budget, carbon, bounds)
        self._budget = RetryBudget(limits)
        self.hedges = limits.hedge_after_s is not None or limits.survives

    @property
    def second_after_s(self) -> float | None:
        """Time after which an unanswered request may go to a second instance, s; None: never."""
        if self.limits.hedge_after_s is not None or not self.limits.survives:
            return self.limits.hedge_after_s
        return self.routes.slo_latency_s

    def hedge_again_s(self, pending: PendingRequest) -> float | None:
        """Return the time after which to call `hedge` again for a request; None: never."""
        done = pending.ended or (pending.hedge is not None and not self.limits.survives)
        return None if done else (self.second_after_s or 0.0) / HEDGE_TRIES or None

    def hedge(self, pending: PendingRequest, now_s: float = 0.0) -> list[Decision]:
        """Give a request that takes long to another instance as well.

        Only where one has a credit that no waiting request needs, and within the budget. The first
        to answer wins; the request is withdrawn from the other. Where both are silent and a loss
        must be survived, a third takes the place of the first; where requests wait, it goes before
        them instead.
        """
        self._see(now_s)
        if pending.ended or pending.answering or pending.holder is None or pending.deaths:
            return []
        holders = [self.states[each] for each in pending.holding if each in self.states]
        if (
            self.limits.survives
            and holders
            and all(self._silent(each, pending) for each in holders)
        ):
            return self._pass_silent(pending, holders)
        slow = not self.limits.survives or self.limits.hedge_after_s is not None
        if not slow or pending.hedge is not None or self._waiting.depth:
            return []
        return self._send_second(pending)

    def _silent(self, state: InstanceState, pending: PendingRequest) -> bool:
        """Return whether an instance has been silent for too long while it held a request."""
        slo_s = self.routes.slo_latency_s
        usual_s = state.latency.likely_s or (slo_s if pending.attempts == 1 else 0.0)
        patience_s = min(max(usual_s, slo_s / HEDGE_TRIES), slo_s)
        return self.now_s - max(state.heard_s, pending.assigned_s) >= patience_s

    def _pass_silent(
        self, pending: PendingRequest, holders: Sequence[InstanceState]
    ) -> list[Decision]:
        """Give a request to another instance than silent ones, or another chance to choose one."""
        since_s = max(pending.assigned_s, *(each.heard_s for each in holders))
        for each in holders:
            self.silence.begin(each, since_s)
        if pending.attempts >= self.limits.max_attempts:
            return []
        sent = [] if self._waiting.depth else self._send_second(pending, since_s)
        return sent or self._wait_again(pending, since_s)

    def _send_second(
        self, pending: PendingRequest, silent_since_s: float = math.inf
    ) -> list[Decision]:
        """Give a request to an instance with a credit left; of two that have it the first goes."""
        free = self._pool.free(pending, self.now_s, hedge=True, silent_since_s=silent_since_s)
        if free is None or not self._budget.take():
            return []
        decisions = [] if pending.hedge is None else self._withdraw_first(pending)
        self._pool.hold(free, pending, self.now_s, hedge=True)
        return [*decisions, Send(free.instance, pending)]

    def _wait_again(self, pending: PendingRequest, since_s: float) -> list[Decision]:
        """Put a request before those that wait; another instance must have answered meanwhile."""
        answered = any(each.heard_s > since_s for each in self._pool.eligible)
        if not answered or not self._budget.take():
            return []
        decisions: list[Decision] = []
        while pending.holder is not None:
            decisions += self._withdraw_first(pending)
        self._waiting.returned.push(pending)
        return [*decisions, *self._assign_waiting()]

    def _withdraw_first(self, pending: PendingRequest) -> list[Decision]:
        first = pending.holding[0]
        pending.withdraw_first()
        return [Withdraw(self.states[first].instance, pending)]

    def _withdraw(
        self, pending: PendingRequest, answered_by: InstanceId | None = None
    ) -> list[Decision]:
        """Withdraw a request from the instances that have it, but for one that has answered it."""
        return [
            Withdraw(self.states[key].instance, pending)
            for key in pending.holding
            if key != answered_by
        ]

    def _hear(self, state: InstanceState, now_s: float) -> None:
        """Note a sign of life of an instance."""
        state.heard_s = self.now_s = max(self.now_s, now_s)
        if self.silence.since_s:
            self.silence.end(state.instance.id)
