"""Reads the meters and the ledgers, and keeps every GPU's energy account."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from cinquefoil.gpuagent.v1.records import SegmentEnergy
from services.gpuagent.core.device_port import MeterReading
from services.gpuagent.core.mps_limits import thread_shares
from services.gpuagent.energy.core.account import Account, owed_j
from services.gpuagent.energy.core.attribution import EnergyWindow, IdleShare, steered_w
from services.gpuagent.energy.core.progress import SlotProgress, Work, activity_of, stints, work_of
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.gpuagent.state_store import Store
from services.gpuagent.supervision.segments import RunningSegment
from services.kit.power_limits import MOST_OVER_LIMIT

_OTHERS: Final = ""
"""Key of activity outside the segments."""

TICK_S: Final = 0.1
"""The energy counter of real boards is brought up to date every 10 to 100 ms (zeus#181)."""

_ONE_SCALE: Final = frozenset({"counter", "integrated"})
"""Methods whose energy is on one scale: `EnergyMeter` goes on from one to the other."""


@dataclass(frozen=True, slots=True)
class MeteredGpu:
    """Properties of a GPU that its meter needs.

    Attributes:
        idle_power_w: Power without a worker's process, W.
        context_power_w: Power with one and nothing computed, W: its context keeps clocks up.
        sm_count: Its streaming multiprocessors.
        simulated: Activity is modelled energy; of real GPUs, busy time by SMs.
        idle_share: Sharing of idle energy, beside active energy.
        limit_w: Power limit of what its meter counts, W; infinite: not known.
    """

    idle_power_w: float
    context_power_w: float
    sm_count: int
    simulated: bool = False
    idle_share: IdleShare = "none"
    limit_w: float = math.inf

    @property
    def most_w(self) -> float:
        """Most power that it can draw, W."""
        return MOST_OVER_LIMIT * self.limit_w

    def plausible_j(self, elapsed_s: float) -> float:
        """Return the most energy that it can draw in a time; a counter may tick in it, J."""
        return self.most_w * (elapsed_s + TICK_S)


@dataclass(frozen=True, slots=True)
class Reading:
    """Readings at the last update of a GPU's account.

    Attributes:
        meter_j: The device's meter, J.
        at_s: When, CLOCK_MONOTONIC, s.
        cursors: By slot.
        method: How the meter works; "": as ever.
        busy_core_s: As of `MeterReading`.
    """

    meter_j: float
    at_s: float
    cursors: tuple[Work, ...]
    method: str = ""
    busy_core_s: float | None = None


def _of_older_agents(account: dict[str, Any]) -> dict[str, Any]:
    for segment_id, entry in account["segments"].items():
        entry.setdefault("segment_id", segment_id)
        # Agents that did not count receipts left none to be made good.
        entry.setdefault("granted_j", entry["active_j"])
    return account


@dataclass(frozen=True, slots=True)
class Kept:
    """On-disk state of one meter."""

    account: Annotated[Account, BeforeValidator(_of_older_agents)]
    reading: Reading


class GpuMeter:
    """The account of one GPU, kept in a file.

    Meter, cursors and account are one file, replaced as a whole: after a crash the next reading
    covers the time since the last, and nothing is counted twice.

    Args:
        path: The file.
        counters: Of the GPU.
        metered: What the GPU is.
        began_s: When the account begins where there is no file, Unix time, s; 0: it does not say.

    A damaged file is set aside, and the account begins again: the planner knows by the
    time of its beginning that it is another one.

    Attributes:
        account: The account.
        refused: Steps of the meter that no GPU can make, so far; none is in the account.
        refused_at_s: When the last one came, CLOCK_MONOTONIC, s; -inf: none has.

    Raises:
        Unavailable: The file cannot be read, or not be set aside.
    """

    def __init__(
        self, path: Path, counters: SharedCounters, metered: MeteredGpu, began_s: float = 0.0
    ) -> None:
        self._store = Store(path, Kept)
        self._counters = counters
        self._gpu = metered
        self.account = Account(since_s=began_s)
        self.refused = 0
        self.refused_at_s = -math.inf
        self._last: Reading | None = None
        self._idle_owed_j = 0.0
        self._held = True  # a worker's process had the GPU at the last reading
        self._slot_sms: dict[int, tuple[str, float]] = {}
        found = self._store.load(disposable=True)
        if found is not None:
            self.account, self._last = found.account, found.reading

    def read(
        self, meter: MeterReading | None, at_s: float, segments: Iterable[RunningSegment]
    ) -> None:
        """Update the account and write the workers' power figures.

        Args:
            meter: The device's; None: it has none, and its energy is modelled.
            at_s: When it was read, CLOCK_MONOTONIC, s.
            segments: Those that run on the GPU.
        """
        segments = tuple(segments)
        slots = tuple(self._counters.slots())
        cursors = tuple(Work.of(slot, at_s) for slot in slots)
        last = self._last or Reading(meter.energy_j if meter else 0.0, at_s, cursors)
        pairs = zip(cursors, last.cursors, strict=True)
        cursors = tuple(now.following(then) for now, then in pairs)
        # A clock that went back was reset by a restart of the machine.
        elapsed_s = at_s - last.at_s if at_s >= last.at_s else at_s
        seen = tuple(stints(slots, last.cursors, cursors))
        # A GPU that has none draws its idle power, and what profiles say of batches.
        held = any(slot.pid for slot in slots)
        idle_w = self._gpu.context_power_w if held and self._held else self._gpu.idle_power_w
        modelled_j = idle_w * elapsed_s + sum(each.work.profiled_j for each in seen)
        reading = meter or MeterReading(last.meter_j + modelled_j, None, "model")
        done = self._weighed(seen, segments, modelled=meter is None)
        total_j, power_w = self._believed(last, reading, elapsed_s, at_s, modelled_j)
        if held is not self._held and elapsed_s:  # a context came or went within the window
            rest_w = (total_j - sum(each.work.energy_j for each in seen)) / elapsed_s
            idle_w = min(max(rest_w, self._gpu.idle_power_w), self._gpu.context_power_w)
        self._held = held
        activity = {**activity_of(done), **_of_others(last, reading, done)}
        mean_w = total_j / elapsed_s if elapsed_s else 0.0
        window = EnergyWindow(
            total_j,
            self._idle_j(total_j, idle_w, elapsed_s),
            activity,
            {r.spec.segment_id: r.config.sm_count / self._gpu.sm_count for r in segments},
            work_of(done),
            mean_w if power_w is None else power_w,
            reading.method,
            self._gpu.idle_share,
        )
        self._apply(window, segments, done)
        self._last = Reading(reading.energy_j, at_s, cursors, reading.method, reading.busy_core_s)

    def save(self) -> None:
        """Write the account. Blocks, but does not wait for the disk: a window is soon replaced.

        Raises:
            Unavailable: The disk does not take it; the account goes on in memory.
        """
        if self._last is not None:
            self._store.save(Kept(self.account, self._last), durable=False)

    # ---- the window ----------------------------------------------------------------------------

    def _believed(
        self, last: Reading, reading: MeterReading, elapsed_s: float, at_s: float, modelled_j: float
    ) -> tuple[float, float | None]:
        """Return the energy and the power of a window, as far as a GPU can draw them.

        A step that it cannot have made is not billed: power over the time is, or what profiles say.
        The meter goes on from where it stands now.
        """
        power_w, most_w = reading.power_w, self._gpu.most_w
        if power_w is not None and not 0 <= power_w <= most_w:
            power_w = None
        drawn_j = _drawn_j(last, reading)
        if drawn_j <= self._gpu.plausible_j(elapsed_s):
            return drawn_j, power_w
        if last.method in ("", reading.method):  # else it is not on one scale with the last
            self.refused += 1
            self.refused_at_s = at_s
        most_j = most_w * elapsed_s
        return min(modelled_j if power_w is None else power_w * elapsed_s, most_j), power_w

    def _idle_j(self, total_j: float, idle_w: float, elapsed_s: float) -> float:
        """Return the idle energy of a window, with what the one before could not pay.

        A counter that ticks shows a little less in one window and a little more in the next; idle
        energy that was cut off is no activity of the next.
        """
        idle_j = idle_w * elapsed_s + self._idle_owed_j
        most_j = idle_w * TICK_S
        self._idle_owed_j = min(max(idle_j - total_j, 0.0), most_j)
        return idle_j

    def _weighed(
        self, seen: Sequence[SlotProgress], segments: Sequence[RunningSegment], *, modelled: bool
    ) -> tuple[SlotProgress, ...]:
        """Return the stints with their activity."""
        for running in segments:
            shares = thread_shares(running.spec)
            for supervisor, share in zip(running.supervisors, shares, strict=True):
                sms = running.config.sm_count * share
                self._slot_sms[supervisor.spec.slot] = (running.spec.segment_id, sms)

        def activity(stint: SlotProgress) -> float:
            if modelled:
                return stint.work.profiled_j
            if self._gpu.simulated:
                return stint.work.energy_j
            # A segment that ended since the last reading is still known here.
            segment_id, sms = self._slot_sms.get(stint.slot, ("", 0.0))
            return stint.work.busy_s * sms if segment_id == stint.segment_id else 0.0

        return tuple(replace(stint, activity=activity(stint)) for stint in seen)

    # ---- what comes of it ----------------------------------------------------------------------

    def _apply(
        self,
        window: EnergyWindow,
        segments: Sequence[RunningSegment],
        done: Sequence[SlotProgress],
    ) -> None:
        account = self.account
        for running in segments:
            spec = running.spec
            entry = SegmentEnergy(
                segment_id=spec.segment_id,
                model=spec.model,
                variant=spec.variant,
                slice=str(spec.placement),
                stage=spec.stage,
            )
            account = account.opened(entry)
        before, account = account, account.after(window)
        for running in segments:
            name = running.spec.segment_id
            entry = account.segments[name]
            own = [stint for stint in done if stint.segment_id == name]
            active_j = entry.active_j - before.segments[name].active_j
            powers_w = _powers_w(own, active_j, owed_j(entry), self._gpu.most_w)
            self._grant(running, powers_w, window.method)
        self.account = account.compacted(frozenset(r.spec.segment_id for r in segments))

    def _grant(self, running: RunningSegment, powers_w: Mapping[int, float], method: str) -> None:
        """Write what a segment's workers draw; workers without new figures keep theirs."""
        for supervisor in running.supervisors:
            slot = supervisor.spec.slot
            known = self._counters.grant(slot)
            grant = replace(known, idle_power_w=running.config.idle_power_w)
            if slot in powers_w:
                grant = replace(grant, busy_power_w=powers_w[slot], method=method)
            if grant != known:
                self._counters.set_grant(slot, grant)


def _drawn_j(last: Reading, reading: MeterReading) -> float:
    """Return the energy drawn since the last reading, J.

    A meter that went back began at 0; one of another scale began anywhere, so that the energy
    before its first reading is not known.
    """
    if last.method not in ("", reading.method) and not {last.method, reading.method} <= _ONE_SCALE:
        return 0.0
    return reading.energy_j - (last.meter_j if reading.energy_j >= last.meter_j else 0.0)


def _of_others(
    last: Reading, reading: MeterReading, done: Sequence[SlotProgress]
) -> Mapping[str, float]:
    """Return the activity of cores outside the segments: the system, other programs, this agent.

    They draw their share too, and no segment pays for it.
    """
    if reading.busy_core_s is None or last.busy_core_s is None:
        return {}
    ours_s = sum(stint.activity for stint in done)
    return {_OTHERS: max(reading.busy_core_s - last.busy_core_s - ours_s, 0.0)}


def _powers_w(
    own: Sequence[SlotProgress], active_j: float, unstated_j: float, most_w: float
) -> Mapping[int, float]:
    """Return the active power of a segment's workers while busy, by slot; no more than can be.

    A window without work, or without energy, says nothing of the power of work; one with little
    work may have energy of the window before it, as counters lag.
    """
    activity = sum(stint.activity for stint in own)
    if active_j <= 0 or activity <= 0:
        return {}
    per_activity_j = active_j / activity
    return {
        stint.slot: min(
            steered_w(per_activity_j * stint.activity / busy_s, unstated_j, active_j), most_w
        )
        for stint in own
        if (busy_s := stint.work.busy_s) > 0 and stint.activity > 0
    }
