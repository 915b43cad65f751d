"""The rest of the suite, as it is before and after a lie: it must be the same."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Final

from benchmarks.attacks.target import Target
from services.planner.core.load_report import MOST_RPS

_MOST_W: Final = 1e4
_MOST_RPS: Final = 4 * MOST_RPS
"""A router's load as it is believed, and what a forecast adds to it."""

_SLACK_J: Final = 1e4


class Spread(Exception):
    """A lie has changed what others have."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The others' part of the suite at a time.

    Attributes:
        facts: That a lie may not change, by name.
        energy_j: Energy of the fleet's account.
        figures: Others that have to be finite.
        demand_rps: Of all models.
        gpus: Number of GPUs in the fleet.
        at_s: When, monotonic.
    """

    facts: dict[str, object]
    energy_j: float
    figures: tuple[float, ...]
    demand_rps: float
    gpus: int
    at_s: float = field(default_factory=time.monotonic)

    def check(self, after: Seen) -> None:
        """Compare with what is there after a lie.

        Raises:
            Spread: It has changed.
        """
        if found := self._spread(after):
            raise Spread(found)

    def _spread(self, after: Seen) -> str:
        for name, fact in self.facts.items():
            if after.facts[name] != fact:
                return f"{name} changed from {fact} to {after.facts[name]}"[:160]
        if not all(map(math.isfinite, (after.energy_j, after.demand_rps, *after.figures))):
            return "a figure is not finite"
        grown_j = after.energy_j - self.energy_j
        most_j = _MOST_W * (after.gpus + 1) * (after.at_s - self.at_s) + _SLACK_J
        if not 0 <= grown_j <= most_j:
            return f"the fleet's energy grew by {grown_j:.3g} J"
        if not 0 <= after.demand_rps <= _MOST_RPS:
            return f"demand of {after.demand_rps:.3g} requests/s"
        return ""


async def seen(target: Target) -> Seen:
    """Look at a suite as its operator."""
    fleet, status = await target.fleet(), await target.router_status()
    node = next(each for each in fleet.nodes if each.node.name == "node-0")
    instances = [each for model in status.models for each in model.instances]
    segments = sorted(each.spec.segment_id for each in node.node.segments)
    return Seen(
        {
            "connection of node-0": node.connected,
            "GPUs of node-0": sorted(each.uuid for each in node.node.gpus),
            "segments of node-0": segments,
            # Workers that lied are replaced, as no router reaches them: those of their own node.
            "routes to node-0": sorted(
                (each.segment_id, each.endpoint)
                for each in instances
                if each.segment_id in segments
            ),
            "models": sorted(each.model for each in status.models),
            "link to node-0": any(
                each.connected for each in instances if each.segment_id == target.segment
            ),
            "PUE of node-0": node.pue,
            "orders": sum(each.HasField("order") for each in fleet.nodes),
            "term": fleet.leader.term < 2**31,
        },
        fleet.energy_j,
        (
            fleet.carbon_gco2e,
            *(figure for each in status.models for figure in (each.energy_j, each.carbon_gco2e)),
        ),
        sum(fleet.demand_rps.values()),
        sum(len(each.node.gpus) for each in fleet.nodes),
    )
