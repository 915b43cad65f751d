"""Second instances: a retry after a failure, a hedge for a request that takes long."""

from __future__ import annotations

from collections.abc import Iterable

from services.router.core.dispatch.admission import Admission
from services.router.core.dispatch.decisions import Decision, Fail, Reply, Send, Withdraw
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.dispatch.retry_budget import RetryBudget
from services.router.core.instance_state import InstanceState
from services.router.core.model import Limits
from services.router.core.pending_request import PendingRequest


class RetryHedge:
    """Retries and hedges of one model, within one budget.

    Args:
        admission: Where retried requests wait.
        pool: The instances.
        limits: Bounds of the budget.
    """

    def __init__(self, admission: Admission, pool: InstancePool, limits: Limits) -> None:
        self._admission = admission
        self._pool = pool
        self._budget = RetryBudget(limits)

    def hedge(self, pending: PendingRequest, offered: int, now_s: float) -> list[Decision]:
        """Give a request that takes long to a second instance as well.

        Only where an instance has a credit that no waiting request needs, and within the budget.

        Args:
            pending: The request.
            offered: Requests offered so far.
            now_s: The time.
        """
        if pending.ended or pending.answering or pending.hedge or pending.holder is None:
            return []
        if self._admission.queue or self._admission.suspects or pending.deaths:
            return []
        state = self._pool.free(besides=pending.holder)
        if state is None or not self._budget.take(offered):
            return []
        pending.assign_hedge(state.instance.id, self._pool.hold(state, pending), now_s)
        return [Send(state.instance, pending)]

    def settle(self, pending: PendingRequest, state: InstanceState) -> Iterable[Decision]:
        """Reply to a request that an instance answered; withdraw it from the other one."""
        reply = Reply(state.instance, pending)
        if pending.hedge is None:
            return (reply,)
        loser = pending.hedge if pending.holder == state.instance.id else pending.holder
        if loser is None:
            return (reply,)
        return (reply, Withdraw(self._pool.states[loser].instance, pending))

    def retry(
        self,
        pending: PendingRequest,
        state: InstanceState,
        *,
        unseen: bool,
        offered: int,
        retry_after_s: float,
    ) -> Iterable[Decision]:
        """Put a request back in its place, or end it where it has had too many instances.

        Where a second instance has it as well, that one continues.

        Args:
            pending: The request.
            state: The instance that did not answer it.
            unseen: The request never left for this instance.
            offered: Requests offered so far.
            retry_after_s: When its caller may try again, if it ends here.
        """
        if pending.lose(state.instance.id) or pending.ended:
            return ()
        error = self._budget.refusal(
            pending,
            free=state.draining or unseen,
            offered=offered,
            retry_after_s=retry_after_s,
        )
        if error is None:
            waiting = self._admission.suspects if pending.deaths else self._admission.queue
            waiting.push(pending)
            return ()
        pending.end()
        return (Fail(pending, error),)
