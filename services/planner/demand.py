"""How much load to provide for: what is configured, or what arrives where that is more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_TIME_CONSTANT_S = 30.0
_LEAST_WEIGHT_S = 1.0  # a first report over a few milliseconds says little


@dataclass(slots=True)
class _Mean:
    """Exponentially weighted arrivals and the time they came in; their ratio is the rate."""

    arrivals: float = 0.0
    window_s: float = 0.0

    @property
    def rate_rps(self) -> float:
        return self.arrivals / max(self.window_s, _LEAST_WEIGHT_S)

    def add(self, arrivals: int, window_s: float) -> None:
        keep = math.exp(-window_s / _TIME_CONSTANT_S)
        self.arrivals = self.arrivals * keep + arrivals
        self.window_s = self.window_s * keep + window_s


class Demand:
    """Load per model, from the routers' reports."""

    def __init__(self, configured_rps: Mapping[str, float]) -> None:
        self._configured_rps = dict(configured_rps)
        self._seen: dict[str, dict[str, _Mean]] = {}

    def observe(self, router_id: str, arrivals: Mapping[str, int], window_s: float) -> None:
        """Take in one router's report.

        Args:
            router_id: The router.
            arrivals: Requests that arrived, by model; unknown models are not ours to serve.
            window_s: Time they arrived in, s; reports without time say nothing.
        """
        if window_s <= 0:
            return
        means = self._seen.setdefault(router_id, {})
        for model, count in arrivals.items():
            if model in self._configured_rps:
                means.setdefault(model, _Mean()).add(count, window_s)

    def forget(self, router_id: str) -> None:
        """A router has gone: its load is another's now."""
        self._seen.pop(router_id, None)

    def rates_rps(self) -> dict[str, float]:
        """Return the load to provide for, req/s by model.

        The larger of the configured load and the exponentially weighted mean (time constant 30 s)
        of what arrived, summed over routers.
        """
        return {
            model: max(
                configured,
                sum(means[model].rate_rps for means in self._seen.values() if model in means),
            )
            for model, configured in self._configured_rps.items()
        }
