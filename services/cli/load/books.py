"""Books of a load: each request sent is answered, lost for a reason, or open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services.kit.sketch import Buckets, Sketch

_LATENCIES: Final = Buckets.spanning(1e-4, 3600.0, 1.01)
PERCENTILES: Final = (50.0, 95.0, 99.0)


@dataclass(slots=True)
class Books:
    """Account of a load in fixed memory: sent = answered + lost + open.

    Attributes:
        objective_s: Latency within which an answer is in time, s.
        sent: Requests sent.
        answered: Requests answered.
        in_time: Answers within the objective, from the planned moment of sending.
        losses: Requests that ended otherwise, by reason.
        judged, right: Answers whose truth is known, and those that were right.
        variants: Answers by variant.
        energy_j, energy_idle_j, carbon_gco2e: Sums of the receipts.
        methods: Answers by the receipt's energy_method.
    """

    objective_s: float
    sent: int = 0
    answered: int = 0
    in_time: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    right: int = 0
    variants: Counter[str] = field(default_factory=Counter)
    energy_j: float = 0.0
    energy_idle_j: float = 0.0
    carbon_gco2e: float = 0.0
    methods: Counter[str] = field(default_factory=Counter)
    _latencies: Sketch = field(default_factory=lambda: Sketch(_LATENCIES))

    @property
    def lost(self) -> int:
        """Requests that ended without an answer."""
        return self.losses.total()

    @property
    def open(self) -> int:
        """Requests sent that have not ended."""
        return self.sent - self.answered - self.lost

    def answer(self, latency_s: float, receipt: Mapping[str, Any]) -> None:
        """Count an answer with its receipt; latency from the planned moment of sending, s."""
        self.answered += 1
        self.in_time += latency_s <= self.objective_s
        self._latencies.add(latency_s)
        self.variants[str(receipt.get("model_variant", "?"))] += 1
        self.methods[str(receipt.get("energy_method", "none"))] += 1
        self.energy_j += float(receipt.get("energy_j", 0.0))
        self.energy_idle_j += float(receipt.get("energy_idle_j", 0.0))
        self.carbon_gco2e += float(receipt.get("carbon_gco2e", 0.0))

    def judge(self, *, right: bool) -> None:
        """Count whether an answer was right."""
        self.judged += 1
        self.right += right

    def lose(self, reason: str) -> None:
        """Count a request that ended without an answer."""
        self.losses[reason] += 1

    def latencies(self) -> Sketch:
        """Return a copy of the latencies so far, s: the difference of two is a stretch of time."""
        return self._latencies.copy()

    def document(self) -> dict[str, Any]:
        """Return the books for JSON."""
        quantiles = self._latencies.quantiles(PERCENTILES)
        return {
            "sent": self.sent,
            "answered": self.answered,
            "lost": self.lost,
            "open": self.open,
            "losses": dict(self.losses),
            "latency_s": {f"p{each:g}": quantiles.get(each) for each in PERCENTILES},
            "objective_s": self.objective_s,
            "in_time": self.in_time,
            "accuracy": self.right / self.judged if self.judged else None,
            "variants": dict(self.variants),
            "energy_j": self.energy_j,
            "energy_idle_j": self.energy_idle_j,
            "carbon_gco2e": self.carbon_gco2e,
            "energy_methods": dict(self.methods),
        }
