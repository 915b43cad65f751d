"""Whether a request may be given to another worker: not without limit, and not in a storm."""

from __future__ import annotations

from services.kit.errors import Unavailable
from services.router.core.model import POISON_DEATHS, Limits
from services.router.core.pending_request import PendingRequest


class RetryBudget:
    """The retries of one model: a token bucket that each request fills by a share of a token.

    Source: Finagle's RetryBudget; gRFC A6, "Throttling retry attempts".
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tokens = float(limits.retry_burst)
        self._counted = 0

    def take(self, offered: int) -> bool:
        """Take one retry; return whether there was one.

        Args:
            offered: Requests offered so far.
        """
        earned = self._limits.retry_share * (offered - self._counted)
        self._tokens = min(self._tokens + earned, float(self._limits.retry_burst))
        self._counted = offered
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def refusal(
        self, pending: PendingRequest, *, free: bool, offered: int, retry_after_s: float
    ) -> Unavailable | None:
        """Return why a request that came back is not given to another worker; None: it is.

        Args:
            pending: The request.
            free: It costs no retry: its worker left in order, or cannot have seen it.
            offered: Requests offered so far.
            retry_after_s: When its caller may try again.
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
        elif not free and not self.take(offered):
            model = pending.request.model
            reason = "RETRIES_SPENT"
            why = f"a worker failed, and model {model!r} has no retries left for now"
        else:
            return None
        return Unavailable(why, reason=reason, retry_after_s=retry_after_s)
