"""Whether a request may be given to another worker: not for ever, and not in a storm."""

from __future__ import annotations

from services.kit.errors import Unavailable
from services.router.core.model import POISON_DEATHS, Limits, Request


class RetryBudget:
    """The retries of one model: a token bucket that requests fill, each by a share of a token.

    Source: Finagle's RetryBudget; gRFC A6, "Throttling retry attempts".
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tokens = float(limits.retry_burst)
        self._seen = 0

    def take(self, requests: int) -> bool:
        """Take one retry; tell whether there was one.

        Args:
            requests: How many requests there have been in all.
        """
        earned = self._limits.retry_share * (requests - self._seen)
        self._tokens = min(self._tokens + earned, float(self._limits.retry_burst))
        self._seen = requests
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def refusal(
        self, request: Request, *, blameless: bool, requests: int, retry_after_s: float
    ) -> Unavailable | None:
        """Return why a request that came back is not given to another worker; None: it is.

        Args:
            request: It.
            blameless: Its worker left in order, or cannot have seen it: that costs no retry.
            requests: As for `take`.
            retry_after_s: When its caller may try again.
        """
        if request.begun:
            reason, why = "ANSWER_CUT_SHORT", "its worker stopped in the middle of the answer"
        elif request.deaths >= POISON_DEATHS:
            # No retry info: the caller should not send it again by itself.
            why = f"{request.deaths} workers died while they held this request; it is not retried"
            return Unavailable(why, reason="WORKERS_DIED")
        elif request.attempts >= self._limits.max_attempts:
            reason = "NO_WORKER_ANSWERED"
            why = f"{request.attempts} workers took this request and none could answer"
        elif not blameless and not self.take(requests):
            reason = "RETRIES_SPENT"
            why = f"a worker failed, and model {request.model!r} has no retries left for now"
        else:
            return None
        return Unavailable(why, reason=reason, retry_after_s=retry_after_s)
