"""Whose joules? A GPU's metered energy, split so that the parts sum to the whole.

Source: Kepler, `mig-power-attribution.md`: P_i = (P_total - P_idle) * a_i / sum(a), with a_i the
activity of part i; idle power is kept apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from services.kit.errors import InvalidArgument

KEPT_ENDED: Final = 64
"""Segments that ended and keep an entry of their own; older ones are merged by variant."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time on one GPU.

    Attributes:
        total_j: Metered energy, J, >= 0.
        idle_j: Idle power times the stretch, J, >= 0.
        activity: By segment, >= 0, in any one unit: busy time x SMs, or modelled joules.
    """

    total_j: float
    idle_j: float
    activity: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.total_j, self.idle_j, *self.activity.values()) < 0:
            raise InvalidArgument(f"energy and activity must be >= 0, got {self}")


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a window's energy went; idle_j + unattributed_j + sum(active_j) = its total, J."""

    idle_j: float
    unattributed_j: float
    active_j: Mapping[str, float]


def attribute(window: Window) -> Parts:
    """Split a window's energy.

    Idle energy comes first, up to all there is; the rest goes to the segments by activity; where
    nobody was active it stays unattributed.
    """
    idle_j = min(window.idle_j, window.total_j)
    rest_j = window.total_j - idle_j
    activity = sum(window.activity.values())
    if activity <= 0:
        return Parts(idle_j, rest_j, {})
    # The quotient first: rest x share could underflow or overflow where the quotient does not.
    active_j = {name: rest_j * (share / activity) for name, share in window.activity.items()}
    return Parts(idle_j, 0.0, active_j)


@dataclass(frozen=True, slots=True)
class Used:
    """What was seen beside the energy in a window.

    Attributes:
        requests: Requests answered, by segment.
        busy_s: Busy time summed over workers, by segment, s.
        batches: Batches run, by segment.
        power_w: Power at its end, W.
        method: How the energy was metered.
    """

    requests: Mapping[str, int] = field(default_factory=dict)
    busy_s: Mapping[str, float] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)
    power_w: float = 0.0
    method: str = "model"


@dataclass(frozen=True, slots=True)
class SegmentAccount:
    """What one segment used.

    Attributes:
        model, variant: What it serves.
        active_j: Active energy attributed to it, J.
        requests: Requests it answered.
        busy_s: Busy time summed over its workers, s.
        batches: Batches they ran, answered or not.
    """

    model: str
    variant: str
    active_j: float = 0.0
    requests: int = 0
    busy_s: float = 0.0
    batches: int = 0

    def plus(self, active_j: float, requests: int, busy_s: float, batches: int) -> SegmentAccount:
        """Return the account after more was used."""
        return replace(
            self,
            active_j=self.active_j + active_j,
            requests=self.requests + requests,
            busy_s=self.busy_s + busy_s,
            batches=self.batches + batches,
        )


@dataclass(frozen=True, slots=True)
class Account:
    """The energy of one GPU since the agent first saw it.

    total_j = idle_j + unattributed_j + the segments' active_j, up to rounding.

    Attributes:
        total_j: Metered, J.
        idle_j: Idle power over the time, J.
        unattributed_j: Active energy that no segment's activity explains, J.
        power_w: Power now, W.
        method: How it is metered: "counter", "integrated" or "model".
        segments: By segment id, in order of first use.
    """

    total_j: float = 0.0
    idle_j: float = 0.0
    unattributed_j: float = 0.0
    power_w: float = 0.0
    method: str = "model"
    segments: Mapping[str, SegmentAccount] = field(default_factory=dict)

    def opened(self, segment_id: str, model: str, variant: str) -> Account:
        """Return the account with an entry for a segment."""
        if segment_id in self.segments:
            return self
        entry = SegmentAccount(model, variant)
        return replace(self, segments={**self.segments, segment_id: entry})

    def after(self, window: Window, used: Used) -> Account:
        """Return the account after a window.

        Args:
            window: What was metered. Activity of segments without an entry is unattributed.
            used: What else was seen meanwhile.
        """
        parts = attribute(window)
        unknown_j = sum(j for name, j in parts.active_j.items() if name not in self.segments)
        return replace(
            self,
            total_j=self.total_j + window.total_j,
            idle_j=self.idle_j + parts.idle_j,
            unattributed_j=self.unattributed_j + parts.unattributed_j + unknown_j,
            power_w=used.power_w,
            method=used.method,
            segments={
                name: entry.plus(
                    parts.active_j.get(name, 0.0),
                    used.requests.get(name, 0),
                    used.busy_s.get(name, 0.0),
                    used.batches.get(name, 0),
                )
                for name, entry in self.segments.items()
            },
        )

    def compacted(self, running: frozenset[str]) -> Account:
        """Return the account with the oldest ended segments merged, one entry per variant.

        An agent that runs for months ends thousands of segments, and the account travels twice a
        second. No energy is lost.
        """
        ended = [name for name in self.segments if name not in running and not _merged(name)]
        excess = set(ended[: max(len(ended) - KEPT_ENDED, 0)])
        segments = {name: entry for name, entry in self.segments.items() if name not in excess}
        for old in (self.segments[name] for name in ended if name in excess):
            name = f"{_MERGED}{old.model}/{old.variant}"
            entry = segments.get(name, SegmentAccount(old.model, old.variant))
            segments[name] = entry.plus(old.active_j, old.requests, old.busy_s, old.batches)
        return replace(self, segments=segments)


_MERGED = "ended:"


def _merged(segment_id: str) -> bool:
    return segment_id.startswith(_MERGED)
