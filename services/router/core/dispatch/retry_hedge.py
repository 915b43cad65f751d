"""Second instances: for what one could not answer, and for what takes one long."""

from __future__ import annotations

from collections.abc import Iterable

from services.router.core.dispatch.admission import Admission
from services.router.core.dispatch.decisions import Decision, Fail, Reply, Send, Withdraw
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.dispatch.retry_budget import RetryBudget
from services.router.core.instance_state import InstanceState
from services.router.core.model import Limits, Request


class RetryHedge:
    """Retries and hedges of one model, within one budget.

    Args:
        admission: Where what is retried waits.
        pool: Who may be given it.
        limits: The budget.
    """

    def __init__(self, admission: Admission, pool: InstancePool, limits: Limits) -> None:
        self._admission = admission
        self._pool = pool
        self._budget = RetryBudget(limits)

    def hedge(self, request: Request, offered: int) -> list[Decision]:
        """Give a request that takes long to a second instance as well.

        Only where one has a free credit that nobody waits for, and within the budget.

        Args:
            request: It.
            offered: Requests so far.
        """
        if request.over or request.begun or request.holder is None or request.hedge is not None:
            return []
        if self._admission.queue or self._admission.suspects or request.deaths:
            return []
        state = self._pool.free(besides=request.holder)
        if state is None or not self._budget.take(offered):
            return []
        request.hedge = state.instance.id
        self._pool.give(state, request)
        return [Send(state.instance, request)]

    def settle(self, request: Request, state: InstanceState) -> Iterable[Decision]:
        """End a request that a lane answered; a second worker's answer is not wanted any more."""
        reply = Reply(state.instance, request)
        if request.hedge is None:
            return (reply,)
        loser = request.hedge if request.holder == state.instance.id else request.holder
        if loser is None:
            return (reply,)
        return (reply, Withdraw(self._pool.states[loser].instance, request))

    def retry(
        self, request: Request, state: InstanceState, offered: int, retry_after_s: float
    ) -> Iterable[Decision]:
        """Put a request back in its place, or end it where it has met too many instances.

        Where a second instance has it, too, that one goes on.

        Args:
            request: It.
            state: Who did not answer it.
            offered: Requests so far.
            retry_after_s: When its caller may try again, if it ends here.
        """
        answering = request.holder == state.instance.id
        if request.hedge is not None:
            request.holder = request.hedge if answering else request.holder
            request.hedge = None
            if not (request.begun and answering):
                return ()
        request.holder = None
        if request.over:
            return ()
        error = self._budget.refusal(
            request,
            blameless=state.draining or not request.sent,
            requests=offered,
            retry_after_s=retry_after_s,
        )
        if error is None:
            (self._admission.suspects if request.deaths else self._admission.queue).push(request)
            return ()
        request.over = True
        return (Fail(request, error),)
