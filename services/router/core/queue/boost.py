"""Shorter first without giving anyone up: each length class is ranked as if it had come earlier.

A request's rank is its arrival less the boost of its class (`tail` has the formula). theta decides:
as large as gamma, the decay rate of the tail, it makes the tail the lightest that any rule gives;
smaller, it trades some of that for a lower mean. It is the smallest one that keeps the tail:

- with which the tail is foreseen not to get heavier than in order of arrival (`_MOST_GROWTH`), and
- near full load, where what is foreseen is in doubt, as large as `_thrift` says (how that was
  found: docs/decisions).

The load that all this depends on is not counted. It is the one at which requests would wait, in the
long run, for as long as they have been seen to: arrivals that come in peaks or bursts say little
about how long the queue gets, and what the queue never gets to must not be spent. What was seen was
not served in turn, but no order without preemption changes the mean wait if each wait counts as
much as its service time.

The guarantee does not rest on any estimate: a boost is never negative and never above a bound B, so
no request is served before one that came more than B earlier. A request without a prediction has no
boost: it is ranked as it came, and so are all while nothing has been learned.

Source: as `tail`. The aim (speculative shortest job first by predicted classes) is mu-Serve's, ATC
2024, section 3.3. What no order changes: Kleinrock, "A Conservation Law for a Wide Class of
Queueing Disciplines", 1965.
"""

from __future__ import annotations

from bisect import bisect

from services.router.core.queue.tail_bound import Work

CLASSES = 10
"""Classes of length, 0 the shortest: tenths of a model's requests by what is expected of them."""

_RATIO = 1.1
_SHORTEST_S = 1e-3
_BUCKETS = 160  # up to more than an hour
_MOST_SEEN = 20_000.0
_LEAST_SEEN = 50.0
_LEAST_LOAD, _MOST_LOAD = 0.3, 0.99
_MEMORY = 5_000.0  # requests that the mean wait is one of
_DOUBT = 50.0  # requests that are taken not to have waited, until more is known
_MOST_GROWTH = 1.02  # of the tail: its 99th percentile would be 0.4 % later
_STEP, _STEPS = 1.1, 25

_BOUNDS_S = tuple(_SHORTEST_S * _RATIO**index for index in range(_BUCKETS - 1))
_MIDDLES_S = tuple(_SHORTEST_S * _RATIO ** (index - 0.5) for index in range(_BUCKETS))


class Boosts:
    """The boosts of one model's classes, learned from its own requests.

    Args:
        most_s: B, the bound on every boost, s.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._boosts_s: tuple[float, ...] = (0.0,) * CLASSES
        self._seen = [[0.0] * _BUCKETS for _ in range(CLASSES)]
        self._served_s = self._waited_s2 = 0.0

    def of(self, length_class: int | None) -> float:
        """Return a class's boost, s, 0..B; None: no prediction has come."""
        return 0.0 if length_class is None else self._boosts_s[length_class]

    def learn(self, length_class: int, service_s: float, wait_s: float) -> None:
        """Take in a request that had to wait.

        Args:
            length_class: Its class.
            service_s: How long it then kept its slot.
            wait_s: How long it had waited for that.
        """
        self._seen[length_class][bisect(_BOUNDS_S, service_s)] += 1.0
        self._served_s += service_s - self._served_s / _MEMORY
        self._waited_s2 += service_s * wait_s - self._waited_s2 / _MEMORY

    def adapt(self, slots: int) -> None:
        """Adapt to waits and lengths; for now and then, not for every request.

        Args:
            slots: Requests that are served at the same time, >= 1; several count as one server
                that is as many times as fast.
        """
        seen = sum(map(sum, self._seen))
        if seen < _LEAST_SEEN:
            return
        if seen > _MOST_SEEN:  # newer requests count for more
            self._seen = [[count / 2 for count in counts] for counts in self._seen]
        work = self._work(slots)
        load = self._load(work, slots)
        rate_rps = load / work.mean_s
        gamma = work.decay_rate(rate_rps)
        theta = _thrift(load, slots) * gamma
        boosts_s = work.boosts_s(theta)
        for _ in range(_STEPS):
            if work.growth(gamma, rate_rps, boosts_s) <= _MOST_GROWTH:
                break
            theta *= _STEP
            boosts_s = work.boosts_s(theta)
        share = min(1.0, self._most_s / boosts_s[0]) if boosts_s[0] > 0 else 1.0
        self._boosts_s = tuple(min(share * boost, self._most_s) for boost in boosts_s)

    def _work(self, slots: int) -> Work:
        met = [index for index, column in enumerate(zip(*self._seen, strict=True)) if any(column)]
        return Work(
            [_MIDDLES_S[index] / slots for index in met],
            [[counts[index] for index in met] for counts in self._seen],
        )

    def _load(self, work: Work, slots: int) -> float:
        """Return the load at which requests that wait do so for as long as they have, on average.

        Source: Pollaczek and Khinchine's mean wait of those that wait,
        E[S^2] / (2 E[S] (1 - load)).
        """
        wait_s = self._waited_s2 / (self._served_s + _DOUBT * work.mean_s * slots)
        spare = work.square_s2 / (2 * work.mean_s * wait_s) if wait_s > 0 else 1.0
        return min(max(1 - spare, _LEAST_LOAD), _MOST_LOAD)


def _thrift(load: float, slots: int) -> float:
    """Return the least theta, over gamma: 0.48 at up to 70 % load, 0.66 at 90 %, 1.1 near 100 %.

    With many slots little of the tail is waiting that could be moved: it grows with half of them.
    """
    return max(0.48, 0.9 * load - 0.15, 4.4 * load - 3.3) * max(1.0, slots / 2)
