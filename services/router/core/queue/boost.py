"""Shorter first without starvation: each decile of length is ranked as if it came earlier.

A request's rank is its arrival less the boost of its decile (`tail_bound` has the formulas). theta
decides: as large as gamma, the decay rate of the tail, it makes the tail the lightest that any rule
gives; smaller, it trades some of that for a lower mean. It is the smallest theta

- with which no more requests are expected to take longer than one in a hundred takes in order of
  arrival (`_TAIL`; if none is found, requests are served in order of arrival), and
- which, near full load, where that expectation is uncertain, is at least `_min_theta` (how that was
  found: docs/decisions).

The load that this depends on is not counted. It is the load at which requests would wait, in the
long run, for as long as they were observed to wait: arrivals in peaks or bursts say little about
the length of the queue. The observed requests were not served in turn, but no order without
preemption changes the mean wait if each is weighted with its service time.

The guarantee does not rest on any estimate: a boost is never negative and never above a bound B, so
no request is served before one that came more than B earlier. A request without a prediction has no
boost: it keeps its rank by arrival, and so do all before the first adaptation.

Source: as `tail_bound`. The aim (speculative shortest job first by predicted classes) is
mu-Serve's, ATC 2024, section 3.3. What no order changes: Kleinrock, "A Conservation Law for a Wide
Class of Queueing Disciplines", 1965.
"""

from bisect import bisect

from services.router.core.pending_request import PendingRequest
from services.router.core.queue.tail_bound import ServiceTimes, Tail

DECILES = 10
"""Classes of length, 0 the shortest: tenths of a model's requests by their expected lengths."""

_RATIO = 1.1
_SHORTEST_S = 1e-3
_BUCKETS = 160  # up to more than an hour
_MAX_OBSERVED = 20_000.0
_MIN_OBSERVED = 50.0
_MIN_LOAD, _MAX_LOAD = 0.3, 0.97  # queues that are longer still are peaks, not the long run
_DECAY = 5_000.0  # requests that the mean wait is taken over
_PRIOR_WEIGHT = 50.0  # requests that are assumed not to have waited, at first
_TAIL = 0.01  # requests beyond the percentile that must not grow
_PER_SLOTS = 0.15  # power of the number of slots
_STEP, _STEPS = 1.2, 13

_BOUNDS_S = tuple(_SHORTEST_S * _RATIO**index for index in range(_BUCKETS - 1))
_MIDDLES_S = tuple(_SHORTEST_S * _RATIO ** (index - 0.5) for index in range(_BUCKETS))


def decile_at(rank: float) -> int | None:
    """Return the decile that a request is ranked by, 0..DECILES - 1; None: invalid rank.

    Args:
        rank: Share of the model's requests with shorter expected answers, 0..1.
    """
    return min(int(rank * DECILES), DECILES - 1) if 0 <= rank <= 1 else None


class Boosts:
    """The boosts of one model's deciles, learned from its own requests.

    Args:
        bound_s: B, the bound on every boost, s.
    """

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._boosts_s: tuple[float, ...] = (0.0,) * DECILES
        self._observed = [[0.0] * _BUCKETS for _ in range(DECILES)]
        self._served_s = self._waited_s2 = 0.0

    def of(self, length_decile: int | None) -> float:
        """Return a decile's boost, s, 0..B; None: no prediction has come."""
        return 0.0 if length_decile is None else self._boosts_s[length_decile]

    def learn(self, length_decile: int, service_s: float, wait_s: float) -> None:
        """Update the observations with a request that had to wait.

        Args:
            length_decile: Predicted length of its answer.
            service_s: How long it then kept its slot.
            wait_s: How long it had waited for the slot.
        """
        self._observed[length_decile][bisect(_BOUNDS_S, service_s)] += 1.0
        self._served_s += service_s - self._served_s / _DECAY
        self._waited_s2 += service_s * wait_s - self._waited_s2 / _DECAY

    def adapt(self, slots: int) -> None:
        """Adapt to waits and lengths; to be called periodically, not for every request.

        Args:
            slots: Requests that are served at the same time, >= 1; several count as one server
                that is as many times as fast.
        """
        observed = sum(map(sum, self._observed))
        if observed < _MIN_OBSERVED:
            return
        if observed > _MAX_OBSERVED:  # newer requests count for more
            self._observed = [[count / 2 for count in counts] for counts in self._observed]
        times = self._service_times(slots)
        load = self._load(times, slots)
        rate_rps = load / times.mean_s
        gamma = times.decay_rate(rate_rps)
        tail = Tail(times, gamma, rate_rps, _TAIL)
        theta = _min_theta(load, slots) * gamma
        for step in range(_STEPS):
            boosts_s = times.boosts_s(theta * _STEP**step)
            if tail.share_beyond(boosts_s) <= tail.share_in_turn:
                break
        else:
            boosts_s = [0.0] * DECILES
        share = min(1.0, self._bound_s / boosts_s[0]) if boosts_s[0] > 0 else 1.0
        self._boosts_s = tuple(min(share * boost, self._bound_s) for boost in boosts_s)

    def _service_times(self, slots: int) -> ServiceTimes:
        used = [
            index for index, column in enumerate(zip(*self._observed, strict=True)) if any(column)
        ]
        return ServiceTimes(
            [_MIDDLES_S[index] for index in used],
            [[counts[index] for index in used] for counts in self._observed],
            slots,
        )

    def _load(self, times: ServiceTimes, slots: int) -> float:
        """Return the load at which requests that wait do so for as long as observed, on average.

        Source: Pollaczek and Khinchine's mean wait of those that wait,
        E[S^2] / (2 E[S] (1 - load)).
        """
        wait_s = self._waited_s2 / (self._served_s + _PRIOR_WEIGHT * times.mean_s * slots)
        spare = times.square_s2 / (2 * times.mean_s * wait_s) if wait_s > 0 else 1.0
        return min(max(1 - spare, _MIN_LOAD), _MAX_LOAD)


def _min_theta(load: float, slots: int) -> float:
    """Return the least theta, over gamma: 0.48 at up to 70 % load, 0.66 at 90 %, 0.97 near 100 %.

    The more slots, the less the waits are those of one server.
    """
    return max(0.48, 0.9 * load - 0.15, 4.4 * load - 3.3) * float(slots**_PER_SLOTS)


_ADAPT_ANSWERS = 50  # fewer change little
_ADAPT_S = 1.0  # adapting takes 2 to 6 ms


class ShortestFirst:
    """Ranks the requests of one model.

    Args:
        bound_s: No request overtakes one that came more than this earlier, s.
    """

    def __init__(self, bound_s: float) -> None:
        self._boosts = Boosts(bound_s)
        self._learned = 0
        self._adapted_s = 0.0

    def rank(self, pending: PendingRequest, length_decile: int) -> None:
        """Rank a request whose length was predicted."""
        pending.rank(length_decile, self._boosts.of(length_decile))

    def learn(self, pending: PendingRequest, now_s: float, slots: int) -> None:
        """Update the observations with a request's waiting time and time on its instance.

        Nothing is learned of requests without a prediction (that did not wait, or not long
        enough), nor of those that more than one worker had: no queue caused their waits.

        Args:
            pending: The request, just answered.
            now_s: The time.
            slots: Requests that the model's instances may hold together.
        """
        if pending.length_decile is None or pending.attempts > 1 or pending.pipeline is not None:
            return
        service_s = now_s - pending.assigned_s
        self._boosts.learn(pending.length_decile, service_s, pending.queue_s)
        self._learned += 1
        if slots and self._learned >= _ADAPT_ANSWERS and now_s - self._adapted_s >= _ADAPT_S:
            self._boosts.adapt(slots)
            self._learned, self._adapted_s = 0, now_s
