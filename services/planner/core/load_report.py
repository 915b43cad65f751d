"""What a router reports of its load, a window at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.planner.core.accounting.account import Tokens


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a router saw in a window.

    Attributes:
        router_id: Its name.
        revision: Revision of the routing table it uses.
        window_s: Time the counts cover, s.
        arrivals: Requests that arrived, by model.
        answered: Requests answered, all models.
        latency_s: Latency at the SLO's percentile, by model, s.
        late: Answered, but later than the SLO, by model.
        by_variant: Answered, by model and variant.
        refused: Not answered because too much waited, by model.
        tokens: In and out since the router started, by model.
    """

    router_id: str
    revision: int
    window_s: float
    arrivals: Mapping[str, int]
    answered: int
    latency_s: Mapping[str, float]
    late: Mapping[str, int] = field(default_factory=dict)
    by_variant: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, Tokens] = field(default_factory=dict)
