"""Requests that leave for peer regions: within the rates that the planner gives, cleanest first."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cinquefoil.planner.v1.records import Forward

_BURST_S: Final = 0.5
"""Time whose requests may leave at once, s."""

_MAX_VALID_S: Final = 30.0
"""Longest time for which a rate is used without a new one, s."""

_SUSPENDED_S: Final = 5.0
"""Time for which a region that failed gets nothing, s."""


@dataclass(slots=True)
class _Bucket:
    """Tokens of one region and model: a request takes one."""

    rate_rps: float
    until_s: float
    tokens: float
    filled_s: float

    def take(self, now_s: float) -> bool:
        """Take a token; False: there is none, or the rate has expired."""
        if now_s >= self.until_s:
            return False
        most = max(1.0, self.rate_rps * _BURST_S)
        self.tokens = min(most, self.tokens + (now_s - self.filled_s) * self.rate_rps)
        self.filled_s = now_s
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass(slots=True, eq=False)
class Forwarding:
    """Chooses the region of each request, and counts what goes and comes.

    Attributes:
        sent, received, returned: Requests since they were last taken, by region and model.
    """

    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    received: Counter[tuple[str, str]] = field(default_factory=Counter)
    returned: Counter[tuple[str, str]] = field(default_factory=Counter)
    _buckets: dict[str, dict[str, _Bucket]] = field(default_factory=dict)
    _suspended_s: dict[str, float] = field(default_factory=dict)

    def use(self, rates: Iterable[Forward], now_s: float) -> None:
        """Replace all rates from now on; of each model the cleanest region comes first."""
        before, self._buckets = self._buckets, {}
        for rate in rates:
            known = before.get(rate.model, {}).get(rate.region)
            tokens, filled_s = (known.tokens, known.filled_s) if known else (0.0, now_s)
            until_s = now_s + min(rate.valid.total_seconds(), _MAX_VALID_S)
            bucket = _Bucket(rate.rate_rps, until_s, tokens, filled_s)
            self._buckets.setdefault(rate.model, {})[rate.region] = bucket

    def choose(self, model: str, now_s: float) -> str:
        """Return the region that takes the next request of a model; "": this one."""
        for region, bucket in self._buckets.get(model, {}).items():
            if now_s >= self._suspended_s.get(region, -math.inf) and bucket.take(now_s):
                return region
        return ""

    def suspend(self, region: str, now_s: float) -> None:
        """Send nothing to a region that failed, for a while."""
        self._suspended_s[region] = now_s + _SUSPENDED_S
