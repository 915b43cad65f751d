"""Attainment of the objective over the last minutes and hours, and its burn rate.

Source: Google, "The Site Reliability Workbook", chapter 5, "Alerting on SLOs": the burn rate is
the share of bad events over the share that the objective allows; alerts compare a long window and
a short one.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

WINDOWS_S = (300.0, 1800.0, 3600.0, 21600.0)
"""5 min and 1 h, 30 min and 6 h: the workbook's pairs for a page."""

_STEPS_PER_WINDOW = 30  # a window may be longer by such a step of the shortest one

NOT_OURS = frozenset(
    {
        "ALREADY_EXISTS",
        "CANCELLED",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    }
)
"""Statuses of requests that no server could have answered: the objective does not count them."""


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """The service level over one window.

    Attributes:
        window_s: Length of the window.
        attainment: Share of the requests answered in time, 0..1; 1 where there were none.
        burn_rate: 1: the error budget is used up just as fast as the objective allows.
    """

    window_s: float
    attainment: float
    burn_rate: float


def service_level(window_s: float, good: int, bad: int, percentile: float) -> ServiceLevel:
    """Return the service level over a window.

    Args:
        window_s: Length of the window.
        good: Requests answered in time.
        bad: Requests answered late, or not answered for a reason on our side.
        percentile: Percent of the requests that must be good, 0..100.
    """
    missed = bad / (good + bad) if bad else 0.0
    budget = 1 - percentile / 100
    if missed and not budget:
        return ServiceLevel(window_s, 1 - missed, float("inf"))
    return ServiceLevel(window_s, 1 - missed, missed / budget if missed else 0.0)


class _Sample(NamedTuple):
    from_s: float
    counts: tuple[int, ...]


class CounterHistory:
    """Samples of counters, as far back as the longest window.

    Attributes:
        due_s: When the next sample is due.
        counted_s: When the counters last changed; set by their owner.
    """

    def __init__(self, windows_s: tuple[float, ...] = WINDOWS_S) -> None:
        self.windows_s = windows_s
        self.due_s = self.counted_s = float("-inf")
        self._step_s = min(windows_s) / _STEPS_PER_WINDOW
        self._samples: list[_Sample] = []

    def sample(self, now_s: float, counts: tuple[int, ...]) -> None:
        """Keep a sample of the counters; to be called before the first count after `due_s`."""
        self.due_s = now_s + self._step_s
        self._samples.append(_Sample(self.counted_s, counts))
        horizon_s = now_s - max(self.windows_s)
        if len(self._samples) > 1 and self._samples[1].from_s <= horizon_s:
            del self._samples[0]

    def within(self, window_s: float, now_s: float, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Return how much each counter grew in the last `window_s`, or a step more.

        Args:
            window_s: At most the longest window.
            now_s: Monotonic time.
            counts: The counters; new ones began at 0.
        """
        start_s = now_s - window_s
        if self.counted_s <= start_s:
            return (0,) * len(counts)
        samples = list(self._samples)  # a copy: another thread scrapes
        place = bisect_right(samples, start_s, key=lambda sample: sample.from_s)
        then = samples[place - 1].counts if place else ()
        return tuple(now - old for now, old in zip_longest(counts, then, fillvalue=0))
