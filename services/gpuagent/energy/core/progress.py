"""Progress of workers between two readings of their ledger. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Final

from services.gpuagent.core.worker_slot import EMPTY, Slot


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a slot since its file was made, or of a slot or segment over a window.

    Attributes:
        energy_j: Modelled energy (simulated device), or energy stated in receipts, J.
        busy_s: Busy time summed over workers, s.
        requests, batches: Answered, and run, answered or not.
        profiled_j: Energy of the batches by the profile, J.
    """

    energy_j: float = 0.0
    busy_s: float = 0.0
    requests: int = 0
    batches: int = 0
    profiled_j: float = 0.0

    @classmethod
    def of(cls, slot: Slot, at_s: float) -> Work:
        """Return where a slot stands."""
        if slot is EMPTY:
            return NOTHING
        return cls(
            slot.energy_at(at_s), slot.busy_at(at_s), slot.requests, slot.batches, slot.profiled_j
        )

    def following(self, then: Work) -> Work:
        """Return where a slot stands that stood at `then`.

        A worker that the machine kept waiting writes late that its batch ended: what was counted
        beyond that end is not counted again.
        """
        if self.batches < then.batches:  # its file was recreated
            return self
        if self.energy_j >= then.energy_j and self.busy_s >= then.busy_s:
            return self
        return replace(
            self,
            energy_j=max(self.energy_j, then.energy_j),
            busy_s=max(self.busy_s, then.busy_s),
        )

    def since(self, then: Work) -> Work:
        """Return what was done since `then`; a counter that went back counts nothing."""
        pairs = zip(_FIGURES(self), _FIGURES(then), strict=True)
        return Work(*(max(now - before, 0) for now, before in pairs))

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(_FIGURES(self), _FIGURES(other), strict=True)))


NOTHING: Final = Work()

# Every slot's, twice a second: `astuple` copies what it returns, and takes fifty times as long.
_FIGURES = attrgetter(*(field.name for field in fields(Work)))


@dataclass(frozen=True, slots=True)
class SlotProgress:
    """Work of one slot between two readings.

    Attributes:
        slot: Its number.
        segment_id: Its segment.
        work: Its work; nothing is negative.
        activity: What its share of the active energy goes by, once weighed.
    """

    slot: int
    segment_id: str
    work: Work
    activity: float = 0.0


def stints(
    slots: Sequence[Slot], before: Sequence[Work], after: Sequence[Work]
) -> Iterator[SlotProgress]:
    """Yield what each slot that belongs to a segment did."""
    for number, (slot, then, now) in enumerate(zip(slots, before, after, strict=True)):
        if slot.segment_id:
            yield SlotProgress(number, slot.segment_id, now.since(then))


def work_of(stints: Iterable[SlotProgress]) -> Mapping[str, Work]:
    """Return what each segment did."""
    work: defaultdict[str, Work] = defaultdict(Work)
    for stint in stints:
        work[stint.segment_id] += stint.work
    return work


def activity_of(stints: Iterable[SlotProgress]) -> Mapping[str, float]:
    """Return each segment's activity."""
    activity: defaultdict[str, float] = defaultdict(float)
    for stint in stints:
        activity[stint.segment_id] += stint.activity
    return activity
