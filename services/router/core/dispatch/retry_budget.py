"""Budget of retries (after a failure) and hedges (of slow requests)."""

from services.kit.errors import ServiceError, Unavailable
from services.router.core.model import POISON_DEATHS, Limits
from services.router.core.pending_request import PendingRequest


class RetryBudget:
    """Retries and hedges of one model: each request that is offered adds a share of a token.

    Source: Finagle's RetryBudget; gRFC A6, "Throttling retry attempts".

    Args:
        limits: Bounds of the budget.

    Attributes:
        offered: Requests offered so far.
    """

    def __init__(self, limits: Limits) -> None:
        self.offered = 0
        self._limits = limits
        self._tokens = float(limits.retry_burst)
        self._counted = 0

    def take(self) -> bool:
        """Take one retry out of the budget; return whether there was one."""
        earned = self._limits.retry_share * (self.offered - self._counted)
        self._tokens = min(self._tokens + earned, float(self._limits.retry_burst))
        self._counted = self.offered
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def refusal(
        self, pending: PendingRequest, *, left: bool, free: bool, retry_after_s: float
    ) -> ServiceError | None:
        """Return the error of a returned request that gets no other worker; None: it gets one.

        That of an instance that would not answer it passes through, with its status and time.

        Args:
            pending: The request.
            left: An instance is left that has not refused it.
            free: It needs no retry: its worker left in order, or cannot have seen it.
            retry_after_s: When its caller may try again.
        """
        if pending.answering:
            reason = "ANSWER_CUT_SHORT"
            why = "its worker stopped in the middle of the answer"
            if pending.refusals:
                why += f": {pending.last_refusal().message}"
        elif pending.deaths >= POISON_DEATHS:
            # No retry info: the caller should not send it again by itself.
            why = f"{pending.deaths} workers died while they held this request; it is not retried"
            return Unavailable(why, reason="WORKERS_DIED")
        elif pending.refusals:
            another = left and pending.attempts < self._limits.max_attempts
            return None if another and (free or self.take()) else pending.last_refusal()
        elif pending.attempts >= self._limits.max_attempts:
            reason = "NO_WORKER_ANSWERED"
            why = f"this request was given to a worker {pending.attempts} times and never answered"
        elif not free and not self.take():
            model = pending.request.model
            reason = "RETRIES_SPENT"
            why = f"a worker failed, and model {model!r} has no retries left for now"
        else:
            return None
        return Unavailable(why, reason=reason, retry_after_s=retry_after_s)
