"""The energy account of one GPU: what it drew, and which segment drew it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cinquefoil.gpuagent.v1.records import SegmentEnergy
from services.gpuagent.energy.core.attribution import (
    EnergyWindow,
    attribute,
    error_ratio,
    share_idle,
)
from services.gpuagent.energy.core.progress import Work

KEPT_ENDED: Final = 64
"""Segments that ended and keep an entry of their own; older ones are merged by variant."""


def owed_j(entry: SegmentEnergy) -> float:
    """Return the energy attributed that no receipt stated, J; < 0: receipts stated too much."""
    return entry.active_j - entry.granted_j


def _plus(entry: SegmentEnergy, active_j: float, idle_share_j: float, work: Work) -> SegmentEnergy:
    """Return the entry after more was drawn and done."""
    return replace(
        entry,
        active_j=entry.active_j + active_j,
        idle_share_j=entry.idle_share_j + idle_share_j,
        requests=entry.requests + work.requests,
        busy_s=entry.busy_s + work.busy_s,
        batches=entry.batches + work.batches,
        granted_j=entry.granted_j + work.energy_j,
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
        method: How it is metered: "counter", "integrated", "rapl" or "model".
        segments: By segment id, in order of first use.
        window_error_ratio: |parts - total| / total of the last window; 0: all is accounted for.
        since_s: When the account began, Unix time, s; 0: not known.
    """

    total_j: float = 0.0
    idle_j: float = 0.0
    unattributed_j: float = 0.0
    power_w: float = 0.0
    method: str = "model"
    segments: Mapping[str, SegmentEnergy] = field(default_factory=dict)
    window_error_ratio: float = 0.0
    since_s: float = 0.0

    @property
    def active_j(self) -> float:
        """Active energy of all segments, J."""
        return math.fsum(entry.active_j for entry in self.segments.values())

    @property
    def parts_j(self) -> float:
        """The sum of all parts, J; it should be total_j."""
        return math.fsum((self.idle_j, self.unattributed_j, self.active_j))

    @property
    def error_ratio(self) -> float:
        """|parts - total| / total since the beginning; 0: all is accounted for."""
        return error_ratio(self.parts_j, self.total_j)

    @property
    def receipt_ratio(self) -> float:
        """Energy stated in receipts over active energy; 1: they add up, or nothing was drawn."""
        granted_j = math.fsum(entry.granted_j for entry in self.segments.values())
        return granted_j / active_j if (active_j := self.active_j) > 0 else 1.0

    def opened(self, entry: SegmentEnergy) -> Account:
        """Return the account with an entry for a segment, `entry` where it has none yet."""
        if entry.segment_id in self.segments:
            return self
        return replace(self, segments={**self.segments, entry.segment_id: entry})

    def after(self, window: EnergyWindow) -> Account:
        """Return the account after a window; activity of segments without entry is unattributed."""
        parts = attribute(window)
        idle_shares_j = share_idle(window, parts.idle_j)
        unknown_j = sum(j for name, j in parts.active_j.items() if name not in self.segments)
        after = replace(
            self,
            total_j=self.total_j + window.total_j,
            idle_j=self.idle_j + parts.idle_j,
            unattributed_j=self.unattributed_j + parts.unattributed_j + unknown_j,
            power_w=window.power_w,
            method=window.method,
            segments={
                name: _plus(
                    entry,
                    parts.active_j.get(name, 0.0),
                    idle_shares_j.get(name, 0.0),
                    window.work.get(name, Work()),
                )
                for name, entry in self.segments.items()
            },
        )
        return replace(
            after, window_error_ratio=error_ratio(after.parts_j - self.parts_j, window.total_j)
        )

    def compacted(self, running: frozenset[str]) -> Account:
        """Return the account with the oldest ended segments merged, one entry per variant.

        An agent that runs for months ends thousands of segments, and the account travels twice a
        second. No energy is lost.
        """
        ended = [
            name for name in self.segments if name not in running and not name.startswith(_MERGED)
        ]
        excess = set(ended[: max(len(ended) - KEPT_ENDED, 0)])
        segments = {name: entry for name, entry in self.segments.items() if name not in excess}
        for old in (self.segments[name] for name in ended if name in excess):
            name = f"{_MERGED}{old.model}/{old.variant}{f'/{old.stage}' if old.stage else ''}"
            entry = segments.get(name, SegmentEnergy(name, old.model, old.variant, stage=old.stage))
            work = Work(old.granted_j, old.busy_s, old.requests, old.batches)
            segments[name] = _plus(entry, old.active_j, old.idle_share_j, work)
        return replace(self, segments=segments)


_MERGED = "ended:"
