"""Running account of one model of an inference server: load, tokens and times. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from services.gpuagent.observation.core.steps import StepSums, Window
from services.kit.server_metrics.figures import MAX_BUCKETS, Histogram, ServerFigures

_BINS: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Requests in progress, by which time is summed."""

MAX_RATE: Final = 1e7
"""Largest rate of a counter that counts, 1/s: no server gives out more tokens."""

_QUANTITIES: Final = ("requests", "prompt_tokens", "answer_tokens", "items")
_TIMES: Final = ("first_token", "token", "latency")


@dataclass(slots=True)
class ServerAccount:
    """One model of a server while it was observed.

    Attributes:
        server, model: Kind of the server, and the model's name.
        observed_s: Time between the first and the last page, s.
        busy_s: Time in which it had requests in progress, s.
        running_s: Requests in progress summed over time, s.
        counts: Requests, prompt_tokens, answer_tokens, items; a quantity that the server lacks is
            absent.
        times: Histograms of first_token, token, latency.
        occupancy: Time by requests in progress, in bins, s.
        restarts: Times that its counters went back.
        steps: Its steps, for its profile.
        peak_running, peak_waiting: Most requests seen in progress and in its queue.
        peak_recorded: Most in progress since the last record.
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
    steps: StepSums = field(default_factory=StepSums)
    peak_running: float = 0.0
    peak_waiting: float = 0.0
    peak_recorded: float = 0.0
    _last: tuple[float, ServerFigures, float | None] | None = None

    def add(
        self,
        now_s: float,
        seen: ServerFigures,
        active_j: float | None = None,
        *,
        learn: bool = True,
    ) -> None:
        """Count what came since the last page; a page of no later time is left out.

        Args:
            now_s: Monotonic time of the page, s.
            seen: Its figures.
            active_j: Active energy of its workload so far, where it alone has drawn it, J.
            learn: Its steps are those of the highest clock, and are learnt.
        """
        before, self._last = self._last, (now_s, seen, active_j)
        if before is None:
            return
        last_s, last, last_j = before
        length_s = now_s - last_s
        if length_s <= 0:
            self._last = before
            return
        self.observed_s += length_s
        self._count(length_s, last, seen)
        self._occupied(length_s, seen)
        used_j = None if active_j is None or last_j is None else active_j - last_j
        if learn and (window := window_of(length_s, last, seen, used_j)) is not None:
            self.steps.add(window)
        for name in _TIMES:
            now, then = getattr(seen, name), getattr(last, name)
            if now is not None:
                more = now.since(then or Histogram())
                self.times[name] = together(self.times.get(name, Histogram()), more)

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
        self.peak_recorded = max(self.peak_recorded, running)
        self.peak_waiting = max(self.peak_waiting, min(seen.waiting or 0.0, 1e6))
        found = max(bound for bound in _BINS if bound <= running)
        self.occupancy[found] = self.occupancy.get(found, 0.0) + length_s


def together(one: Histogram, other: Histogram) -> Histogram:
    """Return the counts of both."""
    bounds = dict.fromkeys(each for each in (*one.buckets, *other.buckets) if not math.isnan(each))
    buckets: Mapping[float, float] = {
        bound: one.buckets.get(bound, 0.0) + other.buckets.get(bound, 0.0)
        for bound in islice(bounds, MAX_BUCKETS)  # a page may have others each time
    }
    return Histogram(one.count + other.count, one.total_s + other.total_s, buckets)


def window_of(
    length_s: float, last: ServerFigures, seen: ServerFigures, used_j: float | None
) -> Window | None:
    """Return the steps between two pages; None: there were none, or the server does not say.

    The answers in progress follow from the tokens' rate and times (Little's law) where there is a
    histogram, else from the gauge. A window at whose ends nothing ran is left out: the server may
    have rested in it.

    Args:
        length_s: Time between them, s.
        last: The page before.
        seen: The page.
        used_j: Active energy in between, J; None: not known.
    """
    if seen.batches is not None:
        return _batches(last, seen, used_j)
    tokens = _more(last.answer_tokens, seen.answer_tokens)
    rested = any(each.running is not None and each.running <= 0 for each in (last, seen))
    if not tokens or rested:
        return None
    step_s = None
    if seen.token is not None and last.token is not None:
        step_s = seen.token.since(last.token).mean_s
    if step_s is None:
        if not seen.running or not last.running:
            return None
        step_s = length_s * (seen.running + last.running) / 2 / tokens
    if step_s <= 0:
        return None
    steps = min(length_s / step_s, tokens)  # a step gives one token at least: it rested in between
    prompts = _more(last.prompt_tokens, seen.prompt_tokens) or 0.0
    used = None if used_j is None else used_j / steps
    return Window(step_s, tokens / steps, prompts / steps, used)


def _batches(last: ServerFigures, seen: ServerFigures, used_j: float | None) -> Window | None:
    batches, items = _more(last.batches, seen.batches), _more(last.items, seen.items)
    requests = _more(last.requests, seen.requests)
    computed_us = _more(last.computed_us, seen.computed_us)
    if not (batches and items and requests and computed_us):
        return None
    used = None if used_j is None else used_j / batches
    return Window(computed_us / requests / 1e6, items / batches, 0.0, used)


def _more(before: float | None, now: float | None) -> float | None:
    """Return by how much a counter rose; None: it went back, or there is none."""
    return now - before if before is not None and now is not None and now >= before else None
