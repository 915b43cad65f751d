"""Watches for segments whose measurements differ from their profiles."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from services.gpuagent.core.worker_slot import Slot
from services.gpuagent.devices.hardware import Hardware
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.profile_drift.core.drift import BatchTotals, DriftTrack, SegmentKind
from services.gpuagent.supervision.managed_node import ManagedNode
from services.gpuagent.supervision.segments import RunningSegment
from services.kit.hardware.gpu_types import GpuModel
from services.kit.segment import gpus_of
from services.kit.telemetry import logs

_log = logs.get("drift")


@dataclass(slots=True, kw_only=True)
class DriftWatch:
    """Compares the measurements of workers with their profiles.

    Attributes:
        node: What is watched.
        hardware: Its GPUs.
        accounts: What it drew.
        reserved: GPUs on which an operator measures.
        changed: Called when a profile has become wrong, or right.
        tracks: What is known, by kind of segment.
    """

    PERIOD_S: ClassVar = 2.0

    node: ManagedNode
    hardware: Hardware
    accounts: NodeAccounts
    reserved: Callable[[], Collection[str]]
    changed: Callable[[], None]
    tracks: dict[SegmentKind, DriftTrack] = field(default_factory=dict)
    _slots: dict[tuple[str, int], Slot] = field(default_factory=dict)
    _energies: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)  # J, busy s
    _unmetered: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)  # s, J

    @property
    def wrong(self) -> dict[SegmentKind, DriftTrack]:
        """The kinds of segment whose profiles are wrong."""
        return {kind: track for kind, track in sorted(self.tracks.items()) if track.wrong}

    def look(self) -> None:
        """Take in what workers did since the last look."""
        seen: defaultdict[SegmentKind, BatchTotals] = defaultdict(BatchTotals)
        for gpu in self.hardware.gpus:
            gpu_uuid, model = gpu.uuid, gpu.model
            # Simulated clocks are in the ledgers already.
            if not self.node.simulated and model.max_clock_mhz:
                held_mhz = self.node.clocks.in_force_mhz(gpu_uuid) or model.max_clock_mhz
                self.hardware.gpu_counters[gpu_uuid].set_clock_ratio(
                    min(held_mhz / model.max_clock_mhz, 1.0)
                )
            for running in self.node.segments.on(gpu_uuid):
                if running.spec.gpu_uuid != gpu_uuid:
                    continue  # of several GPUs: it is looked at on the first
                kind = _kind(running, model)
                seen[kind] = seen[kind].plus(self._seen(gpu_uuid, running))
        changes = [kind for kind, new in seen.items() if new.batches and self._learn(kind, new)]
        if changes:
            self.changed()

    def _learn(self, kind: SegmentKind, new: BatchTotals) -> bool:
        """Take in batches of one kind; return whether its profile has become wrong, or right."""
        before = self.tracks.get(kind, DriftTrack())
        after = self.tracks[kind] = before.after(new)
        if before.wrong != after.wrong:
            _log.warning(
                "profile is wrong: measure it again" if after.wrong else "profile is right again",
                model=kind.model, variant=kind.variant, gpu=kind.gpu, slice=kind.slice,
                batch_size=kind.batch_size, processes=kind.processes,
                latency_ratio=round(after.seen.latency_ratio, 3),
                energy_ratio=round(after.seen.energy_ratio, 3),
            )  # fmt: skip
        return before.wrong != after.wrong

    def _seen(self, gpu_uuid: str, running: RunningSegment) -> BatchTotals:
        """Return what a segment did since the last look."""
        batches, time_s, profiled_s, profiled_j = 0, 0.0, 0.0, 0.0
        for before, after in self._moves(gpu_uuid, running):
            batches += after.batches - before.batches
            time_s += after.compared_s - before.compared_s
            profiled_s += after.profiled_s - before.profiled_s
            profiled_j += after.profiled_j - before.profiled_j
        segment = gpu_uuid, running.spec.segment_id
        each_w = [self._power_w(uuid, running.spec.segment_id) for uuid in gpus_of(running.spec)]
        unmetered_s, unmetered_j = self._unmetered.pop(segment, (0.0, 0.0))
        if gpu_uuid in self.reserved():
            return BatchTotals()
        batches = batches if profiled_s > 0 else 0
        # A meter is read less often than this looks: its power is of all batches since its last
        # reading, and those of another size among them drew another power.
        metered_s, metered_j = unmetered_s + time_s, unmetered_j + profiled_j
        if not all(each_w):
            self._unmetered[segment] = metered_s, metered_j
            return BatchTotals(batches, time_s, profiled_s)
        return BatchTotals(batches, time_s, profiled_s, sum(each_w) * metered_s, metered_j)

    def _moves(self, gpu_uuid: str, running: RunningSegment) -> Iterator[tuple[Slot, Slot]]:
        """Yield each worker's slot at the last look and now; a slot's counters only grow."""
        for supervisor in running.supervisors:
            number = supervisor.spec.slot
            after = supervisor.counters.slot(number)
            before = self._slots.get((gpu_uuid, number), Slot())
            self._slots[gpu_uuid, number] = after
            if before.segment_id == after.segment_id and before.batches <= after.batches:
                yield before, after

    def _power_w(self, gpu_uuid: str, segment_id: str) -> float:
        """Return a segment's mean active power while busy since the last look; 0: not known."""
        entry = self.accounts.list()[gpu_uuid].segments.get(segment_id)
        if entry is None:
            return 0.0
        now = entry.active_j, entry.busy_s
        before_j, before_s = self._energies.get((gpu_uuid, segment_id), now)
        self._energies[gpu_uuid, segment_id] = now
        busy_s = entry.busy_s - before_s
        return (entry.active_j - before_j) / busy_s if busy_s > 0 else 0.0


def _kind(running: RunningSegment, model: GpuModel) -> SegmentKind:
    spec = running.spec
    return SegmentKind(
        model=spec.model,
        variant=spec.variant,
        gpu=model.name,
        slice=spec.placement.profile,
        batch_size=spec.batch_size,
        processes=spec.processes,
    )
