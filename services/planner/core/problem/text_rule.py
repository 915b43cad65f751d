"""The objectives of a language model's tokens, as the most load that one segment may be given.

A plan that counts mean prompts keeps no first token in time where prompts come in bursts: Azure's
code completion has 70 times more tokens of prompts than of answers, and half of its requests come
in a twentieth of the time. So the segments must be enough for

- the prompts of a burst: what arrives within a second, and within ten, is computed within that time
  and what the objective of the first token leaves for waiting;
- the answers of a burst: no more at a time than slots, in which the time between tokens is kept.

What arrives in a window is a compound of requests and their prompts: its mean and variance follow
from the load, its index of dispersion, and mean and deviation of a prompt's time. Its quantile is
that of the gamma distribution with both (Wilson and Hilferty, 1931), which is the exact form of
Poisson counts' tail to within a few per cent, and skewed as bursts are.
"""

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

from services.planner.core.model import SegmentKind

_SHORT_S, _LONG_S = 1.0, 10.0


class Load(NamedTuple):
    """Load of a model.

    Attributes:
        rate_rps: Requests per second.
        at_1s, at_10s: Index of dispersion for counts in windows of one and of ten seconds.
    """

    rate_rps: float
    at_1s: float = 1.0
    at_10s: float = 1.0

    def dispersion(self, window_s: float) -> float:
        """Return the index of dispersion in windows of any length.

        Between the two by the window's logarithm; below a second it falls to that of a Poisson
        process, and beyond ten it stays.
        """
        if window_s <= _SHORT_S:
            return 1.0 + (self.at_1s - 1.0) * window_s / _SHORT_S
        share = min(math.log(window_s) / math.log(_LONG_S), 1.0)
        return self.at_1s + share * (self.at_10s - self.at_1s)


def least_segments(kind: SegmentKind, load: Load, first_token_s: float, percentile: float) -> float:
    """Return how many segments of a kind keep the objectives of tokens; a real number >= 0.

    Args:
        kind: Kind with `token_times`.
        load: Load of all of them.
        first_token_s: Objective of the time to the first token, s; infinite: none.
        percentile: Percentile of both objectives.
    """
    z = NormalDist().inv_cdf(percentile / 100.0)
    return max(_least(kind, load, first_token_s, z), default=0.0)


def _least(kind: SegmentKind, load: Load, first_token_s: float, z: float) -> Iterator[float]:
    times = kind.token_times
    if times is None or load.rate_rps <= 0:
        return
    answers = load.rate_rps * kind.latency_s
    most = _quantile(answers, answers * load.dispersion(kind.latency_s), z)
    yield most / (kind.batch_size * kind.processes)
    if not times.prompt_s:
        return
    slack_s = first_token_s - times.first_token_s
    if slack_s <= 0:
        yield math.inf
        return
    varied = (times.prompt_deviation_s / times.prompt_s) ** 2
    for window_s in (min(_SHORT_S, slack_s), _SHORT_S, _LONG_S):
        arrivals = load.rate_rps * window_s
        work_s = arrivals * times.prompt_s
        variance = arrivals * times.prompt_s**2 * (load.dispersion(window_s) + varied)
        yield _quantile(work_s, variance, z) / (window_s + slack_s)


def _quantile(mean: float, variance: float, z: float) -> float:
    """Return a quantile of a gamma distribution, by that of the normal one, >= the mean.

    From a variance on the quantile would fall, for most windows are empty then: it stays.
    """
    shape = max(mean * mean / variance, (1.5 * z) ** -2)
    return max(mean * (1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3, mean)
