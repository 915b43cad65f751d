"""Calls that can wait: their number, quotas and time limits, apart from all others."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from services.kit.clock import Clock
from services.kit.config import WaitingRules
from services.kit.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted
from services.router.core.quotas import Quotas
from services.router.core.wire import WAIT_UNTIL, Head

_FREE: Final = nullcontext()
_LONGEST_WAIT_S: Final = 7 * 86_400.0
_FULL_RETRY_S: Final = 1.0


class DeferrableCalls:
    """Counts the calls that can wait, of all models together.

    Args:
        rules: Their rules.
        quotas: Request quotas of clients; None: no limit.
        clock: Time.
    """

    def __init__(self, rules: WaitingRules, quotas: Quotas | None, clock: Clock) -> None:
        self._rules = rules
        self._quotas = quotas
        self._clock = clock
        self._count = 0

    def limit_s(self, head: Head, remaining_s: float | None) -> float:
        """Return the time limit of a call, s.

        Args:
            head: Head of its request.
            remaining_s: Until the caller stops waiting; None: never.

        Raises:
            DeadlineExceeded: Its `wait_until` has passed.
            InvalidArgument: It is too far ahead.
        """
        limit_s = self._rules.timeout_s
        if head.wait_until_s is not None:
            limit_s = head.wait_until_s - self._clock.now().timestamp()
        if limit_s <= 0:
            raise DeadlineExceeded(
                f"{WAIT_UNTIL} passed {-limit_s:.0f} s ago", reason="WAIT_UNTIL", field=WAIT_UNTIL
            )
        if limit_s > _LONGEST_WAIT_S:
            days = _LONGEST_WAIT_S / 86_400
            raise InvalidArgument.at(WAIT_UNTIL, f"must be within the next {days:g} days")
        return min(head.limit_s(remaining_s, limit_s), limit_s)

    @contextmanager
    def counted(self, head: Head, client: Callable[[], str] | None) -> Iterator[None]:
        """Count a call while the block runs.

        Args:
            head: Head of its request.
            client: Returns the client's identity; None: there is none.

        Raises:
            ResourceExhausted: There are as many as may be, or the client's quota is used up.
        """
        if self._count >= self._rules.max_requests:
            raise ResourceExhausted(
                f"{self._count} requests that can wait are here, and"
                " router.waiting.max_requests allows no more",
                reason="WAITING_FULL",
                retry_after_s=_FULL_RETRY_S,
            )
        quota: AbstractContextManager[None] = _FREE
        if self._quotas is not None and client is not None:
            count = self._quotas.charged_apart if head.one_of_many else self._quotas.deferred
            quota = count(client(), self._clock.monotonic())
        self._count += 1
        try:
            with quota:
                yield
        finally:
            self._count -= 1
