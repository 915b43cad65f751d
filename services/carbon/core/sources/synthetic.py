"""A synthetic grid: a daily curve under slow weather, determined by a seed.

With `h` the hour of the day (UTC) and `t` the time in days,

    g(t) = sqrt(1 - w) * curve(h) + sqrt(w) * weather(t)           mean 0, variance 1
    intensity(t) = mean * exp(s * g(t)) / E[exp(s * g)]

* `curve` has a morning peak (7:30), a solar valley (12:30) and a higher evening peak (19:30),
  shifted and scaled to mean 0 and variance 1 over a day.
* `weather` blends one standard normal number per day into the next, cos(u) z_k + sin(u) z_{k+1}.
  As cos^2 + sin^2 = 1 it is standard normal at every instant, and slow. The numbers are hashes of
  (seed, day): there is no state, so instants can be evaluated in any order.
* `w` = 0.25 is the share of variance that weather has.

The exponential keeps the intensity positive whatever the spread. It also makes the moments exact:
curve and weather are independent, so with M(x) the mean over a day of exp(x * curve)

    E[exp(s g)] = M(s sqrt(1 - w)) * exp(s^2 w / 2)
    (std / mean)^2 = E[exp(2 s g)] / E[exp(s g)]^2 - 1

which grows with `s`; the second line is solved for `s` once, by bisection. Over many days the
mean and the standard deviation are then the configured ones, for any seed.
"""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist, fmean, pstdev

from services.carbon.core.model import Sample
from services.carbon.core.sources.source import Source

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
_WEATHER = 0.25
_BLOCK_DAYS = 28
_MAX_SCALE = 8.0  # a spread of some thousand times the mean: beyond any grid
_BUMPS = ((7.5, 6.0, 0.7), (12.5, 4.0, -1.2), (19.5, 6.0, 1.0))
"""Hour of the day, sharpness (of a von Mises bump) and height of each feature of the curve."""


class SyntheticSource(Source):
    """The grid described above, constant within steps of `step`.

    Args:
        mean_gco2e_per_kwh: Mean over many days, > 0.
        std_gco2e_per_kwh: Standard deviation over many days, >= 0.
        seed: Seed of the weather.
        step: Duration of a value; above an hour the moments are no longer exact.
    """

    name = "synthetic"

    def __init__(
        self, mean_gco2e_per_kwh: float, std_gco2e_per_kwh: float, *, seed: int, step: timedelta
    ) -> None:
        self._scale = _scale(std_gco2e_per_kwh / mean_gco2e_per_kwh)
        self._level_gco2e_per_kwh = mean_gco2e_per_kwh / _moment(self._scale)
        self._step = step
        self._normal = _normals(seed)

    def at(self, when: datetime) -> Sample:
        """Return the sample of the step that `when` lies in."""
        since = _EPOCH + (when - _EPOCH) // self._step * self._step
        day, rest = divmod(since - _EPOCH, _DAY)
        fraction = rest / _DAY
        angle = fraction * math.pi / 2
        weather = math.cos(angle) * self._normal(day) + math.sin(angle) * self._normal(day + 1)
        height = math.sqrt(1 - _WEATHER) * _curve(24 * fraction) + math.sqrt(_WEATHER) * weather
        return Sample(since, self._level_gco2e_per_kwh * math.exp(self._scale * height))

    def next_change(self, when: datetime) -> datetime:
        """Return the start of the step after the one that `when` lies in."""
        return _EPOCH + ((when - _EPOCH) // self._step + 1) * self._step


def _normals(seed: int) -> Callable[[int], float]:
    """Return a function from the day since the epoch to its standard normal number."""

    def uniform(*of: int) -> float:
        digest = blake2b(repr((seed, *of)).encode(), digest_size=6).digest()
        return (int.from_bytes(digest) + 0.5) / 2**48

    @lru_cache(maxsize=4)
    def block(number: int) -> tuple[float, ...]:
        ranks = sorted(range(_BLOCK_DAYS), key=lambda rank: uniform(number, rank))
        return tuple(
            NormalDist().inv_cdf((rank + uniform(number, rank, 1)) / _BLOCK_DAYS) for rank in ranks
        )

    def normal(day: int) -> float:
        number, index = divmod(day, _BLOCK_DAYS)
        return block(number)[index]

    return normal


def _raw(hour: float) -> float:
    return sum(
        height * math.exp(sharpness * (math.cos((hour - peak) * math.pi / 12) - 1))
        for peak, sharpness, height in _BUMPS
    )


_HOURS = tuple(24 * index / 288 for index in range(288))
_MEAN, _STD = fmean(map(_raw, _HOURS)), pstdev(map(_raw, _HOURS))


def _curve(hour: float) -> float:
    return (_raw(hour) - _MEAN) / _STD


_CURVE = tuple(map(_curve, _HOURS))


def _moment(scale: float) -> float:
    """Return E[exp(scale * g)]."""
    of_curve = fmean(math.exp(scale * math.sqrt(1 - _WEATHER) * value) for value in _CURVE)
    return of_curve * math.exp(scale**2 * _WEATHER / 2)


def _scale(spread: float) -> float:
    """Return the scale at which std / mean is `spread`."""
    low, high = 0.0, _MAX_SCALE
    for _ in range(60):
        middle = (low + high) / 2
        if _moment(2 * middle) / _moment(middle) ** 2 - 1 < spread**2:
            low = middle
        else:
            high = middle
    return low
