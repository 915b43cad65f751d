"""What workers did between two readings of their ledger. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from services.gpuagent.core.worker_slot import Slot
from services.gpuagent.energy.core.account import WorkDone


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a slot stood when it was last read. Attributes: as of `Slot`."""

    energy_j: float = 0.0
    busy_s: float = 0.0
    requests: int = 0
    batches: int = 0
    profiled_j: float = 0.0

    @classmethod
    def of(cls, slot: Slot, at_s: float) -> Cursor:
        """Return where a slot stands."""
        return cls(
            slot.energy_at(at_s), slot.busy_at(at_s), slot.requests, slot.batches, slot.profiled_j
        )

    def following(self, then: Cursor) -> Cursor:
        """Return where a slot stands that stood at `then`.

        A worker that the machine kept waiting writes late that its batch ended: what was counted
        beyond that end is not counted again.
        """
        if self.batches < then.batches:  # its file was recreated
            return self
        return replace(
            self,
            energy_j=max(self.energy_j, then.energy_j),
            busy_s=max(self.busy_s, then.busy_s),
        )


@dataclass(frozen=True, slots=True)
class SlotProgress:
    """What one slot did between two readings; nothing is negative.

    Attributes:
        slot: Its number.
        segment_id: Whose it is.
        energy_j: Modelled energy (simulated device), or energy stated in receipts, J.
        busy_s: Busy time, s.
        requests, batches: Answered, and run.
        profiled_j: What the profile says of its batches, J.
        activity: What its share of the active energy goes by, once weighed.
    """

    slot: int
    segment_id: str
    energy_j: float
    busy_s: float
    requests: int
    batches: int
    profiled_j: float
    activity: float = 0.0


def stints(
    slots: Sequence[Slot], before: Sequence[Cursor], after: Sequence[Cursor]
) -> Iterator[SlotProgress]:
    """Yield what each slot that belongs to a segment did.

    A counter that went back (its file was recreated) counts nothing.
    """
    for number, (slot, then, now) in enumerate(zip(slots, before, after, strict=True)):
        if slot.segment_id:
            yield SlotProgress(
                slot=number,
                segment_id=slot.segment_id,
                energy_j=max(now.energy_j - then.energy_j, 0.0),
                busy_s=max(now.busy_s - then.busy_s, 0.0),
                requests=max(now.requests - then.requests, 0),
                batches=max(now.batches - then.batches, 0),
                profiled_j=max(now.profiled_j - then.profiled_j, 0.0),
            )


def work_of(stints: Iterable[SlotProgress]) -> Mapping[str, WorkDone]:
    """Return what each segment did."""
    work: defaultdict[str, WorkDone] = defaultdict(WorkDone)
    for stint in stints:
        known = work[stint.segment_id]
        work[stint.segment_id] = WorkDone(
            requests=known.requests + stint.requests,
            busy_s=known.busy_s + stint.busy_s,
            batches=known.batches + stint.batches,
            granted_j=known.granted_j + stint.energy_j,
        )
    return work


def activity_of(stints: Iterable[SlotProgress]) -> Mapping[str, float]:
    """Return each segment's activity."""
    activity: defaultdict[str, float] = defaultdict(float)
    for stint in stints:
        activity[stint.segment_id] += stint.activity
    return activity
