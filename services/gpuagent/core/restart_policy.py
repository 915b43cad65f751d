"""How much a worker may cost and fail before it is ended, and before it is given up. Pure."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """What is borne of a worker process.

    Attributes:
        load_timeout_s: Time from its start to its first answer, s.
        memory_limit_bytes: Resident memory of it and its children, bytes; 0: no bound.
        max_failures: Failures within `window_s` after which it is not started again, >= 1.
        window_s: How long a failure counts, s.
    """

    load_timeout_s: float = 60.0
    memory_limit_bytes: int = 0
    max_failures: int = 5
    window_s: float = 600.0


@dataclass(slots=True)
class FailureHistory:
    """A worker's recent failures.

    Attributes:
        patience: How many are borne.
        last: What the last one was; "": none so far.
        count: Failures since the start, or since they were forgiven.
    """

    patience: RestartPolicy
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
        while self._at_s[0] <= now_s - self.patience.window_s:
            self._at_s.popleft()

    @property
    def too_many(self) -> bool:
        """Whether the last one was one too many; stays so until `reset`."""
        return len(self._at_s) >= self.patience.max_failures

    def reset(self) -> None:
        """Forget all failures."""
        self.last, self.count = "", 0
        self._at_s.clear()
