"""Second instances, within a budget: a retry after a failure, a hedge for what takes long."""

from collections.abc import Iterable

from services.kit.errors import Unavailable
from services.router.core.dispatch.admission import Admission
from services.router.core.dispatch.decisions import Decision, Reply, Send, Withdraw, fail
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.instance_state import InstanceState
from services.router.core.model import POISON_DEATHS, Limits
from services.router.core.pending_request import PendingRequest


class RetryHedge:
    """Retries and hedges of one model, within one budget: each request adds a share of a token.

    Source of the budget: Finagle's RetryBudget; gRFC A6, "Throttling retry attempts".

    Args:
        admission: Where retried requests wait.
        pool: The instances.
        limits: Bounds of the budget.

    Attributes:
        offered: Requests offered so far.
    """

    def __init__(self, admission: Admission, pool: InstancePool, limits: Limits) -> None:
        self.offered = 0
        self._admission = admission
        self._pool = pool
        self._limits = limits
        self._tokens = float(limits.retry_burst)
        self._counted = 0

    def hedge(self, pending: PendingRequest, now_s: float) -> list[Decision]:
        """Give a request that takes long to a second instance as well.

        Only where an instance has a credit that no waiting request needs, and within the budget.

        Args:
            pending: The request.
            now_s: The time.
        """
        if pending.ended or pending.answering or pending.hedge or pending.holder is None:
            return []
        if self._admission.depth or pending.deaths:
            return []
        state = self._pool.free(besides=pending.holder, pending=pending)
        if state is None or not self._take():
            return []
        pending.assign(state.instance.id, self._pool.hold(state, pending), now_s, hedge=True)
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
        self, pending: PendingRequest, state: InstanceState, *, unseen: bool, retry_after_s: float
    ) -> Iterable[Decision]:
        """Put a request back in its place, or end it where it has had too many instances.

        Where a second instance has it as well, that one continues.

        Args:
            pending: The request.
            state: The instance that did not answer it.
            unseen: The request never left for this instance.
            retry_after_s: When its caller may try again, if it ends here.
        """
        if pending.lose(state.instance.id) or pending.ended:
            return ()
        error = self._refusal(pending, free=state.draining or unseen, retry_after_s=retry_after_s)
        if error is None:
            self._admission.queue_of(pending).push(pending)
            return ()
        return (fail(pending, error),)

    def _take(self) -> bool:
        """Take one retry out of the budget; return whether there was one."""
        earned = self._limits.retry_share * (self.offered - self._counted)
        self._tokens = min(self._tokens + earned, float(self._limits.retry_burst))
        self._counted = self.offered
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _refusal(
        self, pending: PendingRequest, *, free: bool, retry_after_s: float
    ) -> Unavailable | None:
        """Return why a request that came back is not given to another worker; None: it is.

        It is free of a retry where its worker left in order, or cannot have seen it.
        """
        if pending.answering:
            reason, why = "ANSWER_CUT_SHORT", "its worker stopped in the middle of the answer"
        elif pending.deaths >= POISON_DEATHS:
            # No retry info: the caller should not send it again by itself.
            why = f"{pending.deaths} workers died while they held this request; it is not retried"
            return Unavailable(why, reason="WORKERS_DIED")
        elif pending.attempts >= self._limits.max_attempts:
            reason = "NO_WORKER_ANSWERED"
            why = f"{pending.attempts} workers took this request and none could answer"
        elif not free and not self._take():
            model = pending.request.model
            reason = "RETRIES_SPENT"
            why = f"a worker failed, and model {model!r} has no retries left for now"
        else:
            return None
        return Unavailable(why, reason=reason, retry_after_s=retry_after_s)
