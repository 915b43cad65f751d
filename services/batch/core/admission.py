"""The number of a model's waiting requests that are with the router at a time."""

from dataclasses import dataclass
from typing import Final

_FIRST: Final = 16.0
_LEAST: Final = 16.0
_HALF: Final = 0.5
_WAITED: Final = 0.5
"""Share of its time with the router for which a request may wait there: then as many wait as run,
so that no instance is without a next one, and more would only wait longer."""


@dataclass(slots=True)
class Admission:
    """Follows how long the router holds requests: fewer where they wait, more where they do not.

    Attributes:
        most: Upper bound.
        limit: Requests that may be in flight.
        in_flight: Requests that are.
        resumes_s: Time before which none is sent, as the router says, s.
    """

    most: int
    limit: float = _FIRST
    in_flight: int = 0
    resumes_s: float = 0.0

    def free(self, now_s: float) -> int:
        """Return how many more may be sent."""
        if now_s < self.resumes_s:
            return 0
        return max(0, min(int(self.limit), self.most) - self.in_flight)

    def answered(self, waited_s: float, took_s: float) -> None:
        """Note an answer.

        A round of answers without any waiting makes the limit half as large again.

        Args:
            waited_s: Time for which the router held the request, s.
            took_s: Time from sending it to its answer, s.
        """
        waited = min(waited_s / took_s, 1.0) if took_s > 0 else 0.0
        least = min(_LEAST, float(self.most))
        self.limit = min(max(self.limit + _WAITED - waited, least), float(self.most))

    def refused(self, now_s: float, retry_after_s: float) -> None:
        """Note that the router takes no more now; those in flight at the time count once."""
        if now_s >= self.resumes_s:
            self.limit = max(1.0, self.limit * _HALF)
        self.resumes_s = max(self.resumes_s, now_s + retry_after_s)
