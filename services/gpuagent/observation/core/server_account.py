"""Running account of one model of an inference server: load, tokens and times. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from services.gpuagent.observation.core.servers import MAX_BUCKETS, Histogram, ServerFigures

_BINS: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Requests in progress, by which time is summed."""

MAX_RATE: Final = 1e7
"""Largest rate of a counter that counts, 1/s: no server gives out more tokens."""

_QUANTITIES: Final = ("requests", "prompt_tokens", "answer_tokens")
_TIMES: Final = ("first_token", "token", "latency")


@dataclass(slots=True)
class ServerAccount:
    """One model of a server while it was observed.

    Attributes:
        server, model: Kind of the server, and the model's name.
        observed_s: Time between the first and the last page, s.
        busy_s: Time in which it had requests in progress, s.
        running_s: Requests in progress summed over time, s.
        counts: Requests, prompt_tokens, answer_tokens; a quantity that the server lacks is absent.
        times: Histograms of first_token, token, latency.
        occupancy: Time by requests in progress, in bins, s.
        restarts: Times that its counters went back.
        peak_running, peak_waiting: Most requests seen in progress and in its queue.
    """

    server: str
    model: str
    observed_s: float = 0.0
    busy_s: float = 0.0
    running_s: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)
    times: dict[str, Histogram] = field(default_factory=dict)
    occupancy: dict[int, float] = field(default_factory=dict)
    restarts: int = 0
    peak_running: float = 0.0
    peak_waiting: float = 0.0
    _last: tuple[float, ServerFigures] | None = None

    def add(self, now_s: float, seen: ServerFigures) -> None:
        """Count what came since the last page; a page of no later time is left out.

        Args:
            now_s: Monotonic time of the page, s.
            seen: Its figures.
        """
        before, self._last = self._last, (now_s, seen)
        if before is None:
            return
        last_s, last = before
        length_s = now_s - last_s
        if length_s <= 0:
            self._last = before
            return
        self.observed_s += length_s
        self._count(length_s, last, seen)
        self._occupied(length_s, seen)
        for name in _TIMES:
            now, then = getattr(seen, name), getattr(last, name)
            if now is not None:
                more = now.since(then or Histogram())
                self.times[name] = _together(self.times.get(name, Histogram()), more)

    def rate(self, quantity: str) -> float | None:
        """Return the mean rate of a quantity, 1/s; None: the server does not count it."""
        if quantity not in self.counts or self.observed_s <= 0:
            return None
        return self.counts[quantity] / self.observed_s

    @property
    def mean_running(self) -> float:
        """Mean requests in progress while there are any."""
        return self.running_s / self.busy_s if self.busy_s > 0 else 0.0

    def _count(self, length_s: float, last: ServerFigures, seen: ServerFigures) -> None:
        restarted = False
        for name in _QUANTITIES:
            now, then = getattr(seen, name), getattr(last, name)
            if now is None:
                continue
            more = now - then if then is not None and now >= then else now
            restarted |= then is not None and now < then
            usable = more if more <= MAX_RATE * length_s else 0.0
            self.counts[name] = self.counts.get(name, 0.0) + usable
        self.restarts += restarted

    def _occupied(self, length_s: float, seen: ServerFigures) -> None:
        if seen.running is None:
            return
        running = min(seen.running, 1e6)
        self.running_s += running * length_s
        self.busy_s += length_s if running > 0 else 0.0
        self.peak_running = max(self.peak_running, running)
        self.peak_waiting = max(self.peak_waiting, min(seen.waiting or 0.0, 1e6))
        found = max(bound for bound in _BINS if bound <= running)
        self.occupancy[found] = self.occupancy.get(found, 0.0) + length_s


def _together(one: Histogram, other: Histogram) -> Histogram:
    bounds = dict.fromkeys(each for each in (*one.buckets, *other.buckets) if not math.isnan(each))
    buckets: Mapping[float, float] = {
        bound: one.buckets.get(bound, 0.0) + other.buckets.get(bound, 0.0)
        for bound in islice(bounds, MAX_BUCKETS)  # a page may have others each time
    }
    return Histogram(one.count + other.count, one.total_s + other.total_s, buckets)
