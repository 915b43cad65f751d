"""Policy for failing workers: restart, or quarantine. Pure."""

from collections import deque
from dataclasses import dataclass, field

from services.kit.config import Workers


@dataclass(slots=True)
class FailureHistory:
    """A worker's recent failures.

    Attributes:
        limits: Number of failures that are tolerated, and their window.
        last: What the last one was; "": none so far.
        count: Failures since the start, or since they were forgiven.
    """

    limits: Workers
    last: str = ""
    count: int = 0
    _at_s: deque[float] = field(default_factory=deque)

    def note(self, now_s: float, what: str) -> None:
        """Note a failure.

        Args:
            now_s: Present time, s; never before that of an earlier call.
            what: What happened, for a person.
        """
        self.last = what
        self.count += 1
        self._at_s.append(now_s)
        while self._at_s[0] <= now_s - self.limits.failure_window_s:
            self._at_s.popleft()

    @property
    def too_many(self) -> bool:
        """True once there were too many failures; stays so until `reset`."""
        return len(self._at_s) >= self.limits.max_failures

    def reset(self) -> None:
        """Forget all failures."""
        self.last, self.count = "", 0
        self._at_s.clear()
