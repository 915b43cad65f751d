"""Reads the meters and the ledgers, and keeps every GPU's energy account."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from services.gpuagent.device import MeterReading
from services.gpuagent.energy import Account, SegmentAccount, Used, Window
from services.gpuagent.files import read_json, write_json
from services.gpuagent.ledger import Grant, Ledger, Slot
from services.gpuagent.segments import Running

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a slot stood when it was last read. Attributes: energy_j, busy_s, requests, batches."""

    energy_j: float = 0.0
    busy_s: float = 0.0
    requests: int = 0
    batches: int = 0

    @classmethod
    def of(cls, slot: Slot, at_s: float) -> Cursor:
        """Return where a slot stands."""
        return cls(slot.energy_at(at_s), slot.busy_at(at_s), slot.requests, slot.batches)


@dataclass(slots=True)
class Progress:
    """What segments did between two readings, by segment id."""

    energy_j: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    busy_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    requests: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    batches: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, slot: Slot, before: Cursor, after: Cursor) -> None:
        """Count what one slot did. A slot that went back (a ledger made anew) counts nothing."""
        self.energy_j[slot.segment_id] += max(after.energy_j - before.energy_j, 0.0)
        self.busy_s[slot.segment_id] += max(after.busy_s - before.busy_s, 0.0)
        self.requests[slot.segment_id] += max(after.requests - before.requests, 0)
        self.batches[slot.segment_id] += max(after.batches - before.batches, 0)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the account of one GPU was last brought up to.

    Attributes:
        meter_j: The device's meter, J.
        at_s: When, CLOCK_MONOTONIC, s.
        cursors: By slot.
    """

    meter_j: float
    at_s: float
    cursors: tuple[Cursor, ...]


class GpuMeter:
    """The account of one GPU, kept in a file.

    Meter, cursors and account are one file, replaced as a whole: after a crash the next reading
    covers the time since the last, and nothing is counted twice.

    Args:
        path: The file.
        ledger: Of the GPU.
        idle_power_w: Of the GPU, W.
        sm_shares: Activity is busy time by SMs (real GPUs); else modelled energy.

    Raises:
        FailedPrecondition: The file is damaged.
    """

    def __init__(self, path: Path, ledger: Ledger, *, idle_power_w: float, sm_shares: bool) -> None:
        self._path = path
        self._ledger = ledger
        self._idle_power_w = idle_power_w
        self._sm_shares = sm_shares
        self.account = Account()
        self._last: Reading | None = None
        data = read_json(path, version=VERSION)
        if data is not None:
            self.account, self._last = _account(data["account"]), _reading(data["reading"])

    def read(self, meter: MeterReading, at_s: float, segments: Iterable[Running]) -> None:
        """Bring the account up to date and tell the workers their figures.

        Args:
            meter: The device's.
            at_s: When it was read, CLOCK_MONOTONIC, s.
            segments: Those that run on the GPU.
        """
        segments = tuple(segments)
        slots = tuple(self._ledger.slots())
        now = Reading(meter.energy_j, at_s, tuple(Cursor.of(slot, at_s) for slot in slots))
        last = self._last or Reading(meter.energy_j, now.at_s, now.cursors)
        progress = Progress()
        for slot, before, after in zip(slots, last.cursors, now.cursors, strict=True):
            if slot.segment_id:
                progress.add(slot, before, after)
        total_j = now.meter_j - last.meter_j if now.meter_j >= last.meter_j else now.meter_j
        idle_j = self._idle_power_w * max(now.at_s - last.at_s, 0.0)
        window = Window(total_j, idle_j, self._activity(progress, segments))
        used = Used(
            progress.requests, progress.busy_s, progress.batches, meter.power_w, meter.method
        )
        self._apply(window, used, segments)
        self._last = now

    def save(self) -> None:
        """Write the account. Blocks, but does not wait for the disk: a window is soon replaced."""
        if self._last is not None:
            data = {
                "version": VERSION,
                "account": asdict(self.account),
                "reading": asdict(self._last),
            }
            write_json(self._path, data, durable=False)

    def _activity(self, progress: Progress, segments: tuple[Running, ...]) -> Mapping[str, float]:
        if not self._sm_shares:
            return progress.energy_j
        sms = {running.spec.segment_id: running.blueprint.sm_count for running in segments}
        return {name: busy_s * sms.get(name, 0) for name, busy_s in progress.busy_s.items()}

    def _apply(self, window: Window, used: Used, segments: tuple[Running, ...]) -> None:
        account = self.account
        for running in segments:
            spec = running.spec
            account = account.opened(spec.segment_id, spec.model, spec.variant)
        before = account
        account = account.after(window, used)
        for running in segments:
            name = running.spec.segment_id
            active_j = account.segments[name].active_j - before.segments[name].active_j
            self._grant(running, active_j, used.busy_s.get(name, 0.0), used.method)
        self.account = account.compacted(frozenset(r.spec.segment_id for r in segments))

    def _grant(self, running: Running, active_j: float, busy_s: float, method: str) -> None:
        for keeper in running.keepers:
            slot = keeper.spec.slot
            # A window without work says nothing of the power of work: the figure before stands.
            known_w = self._ledger.grant(slot).busy_power_w
            busy_power_w = active_j / busy_s if busy_s else known_w
            idle_power_w = running.blueprint.idle_power_w
            self._ledger.set_grant(slot, Grant(busy_power_w, idle_power_w, method))


def _account(data: Mapping[str, Any]) -> Account:
    segments = {name: SegmentAccount(**entry) for name, entry in data["segments"].items()}
    return Account(**{**data, "segments": segments})


def _reading(data: Mapping[str, Any]) -> Reading:
    return Reading(**{**data, "cursors": tuple(Cursor(**entry) for entry in data["cursors"])})
