"""The number of a model's waiting requests that are with the router at a time."""

from dataclasses import dataclass
from typing import Final

_FIRST: Final = 4.0
_HALF: Final = 0.5


@dataclass(slots=True)
class Admission:
    """Additive increase, multiplicative decrease: what the router refuses halves the number.

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
        return (
            max(0, min(int(self.limit), self.most) - self.in_flight)
            if now_s >= self.resumes_s
            else 0
        )

    def answered(self) -> None:
        """Note an answer: one more may be in flight for each round of answers."""
        self.limit = min(self.limit + 1 / self.limit, float(self.most))

    def refused(self, now_s: float, retry_after_s: float) -> None:
        """Note that the router takes no more now; those in flight at the time count once."""
        if now_s >= self.resumes_s:
            self.limit = max(1.0, self.limit * _HALF)
        self.resumes_s = max(self.resumes_s, now_s + retry_after_s)
