"""Activity and cost of the workers on one GPU, shared between the agent and its workers.

A file per GPU, mapped into every process. A worker writes its own slot; the agent writes the
header and what it grants each slot. A slot's counters outlive the processes that use it, one
after another, so no sum over slots ever goes back.

    header | slot 0: worker's record, agent's record | slot 1 | ... | slot 0: latencies | ...

Times are CLOCK_MONOTONIC, which is the same in every process of a machine.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from services.gpuagent.core.process_activity import ProcessActivity
from services.gpuagent.core.worker_slot import EMPTY, Grant, Slot
from services.gpuagent.shared_memory.latency_counters import LatencyCounters
from services.gpuagent.shared_memory.records import Record
from services.kit.errors import InvalidArgument
from services.kit.state_file import not_written, set_aside
from services.kit.whole_file import replacing

SLOTS: Final = 64
NAME_BYTES: Final = 128

_MAGIC = b"CQFLEDG5"
_PREFIX = struct.pack("<8sI", _MAGIC, SLOTS)
_NUMBER = struct.Struct("<d")
_CONTEXT = struct.Struct("<dd")  # seconds with a process, and when that was looked at
_SLOT = struct.Struct(f"<q{NAME_BYTES}s{NAME_BYTES}sddddddQQdddQd")
_FIELDS = attrgetter(*(field.name for field in fields(Slot)))
_GRANT = struct.Struct("<dd16s")
_NO_SERVER: Final[dict[str, Any]] = {"server_waiting": 0, "server_kv_cache_ratio": 0.0}
_HEARTBEAT_AT = 64
_CLOCK_AT = 128
_CONTEXT_AT = 192
_SLOTS_AT = 256
_SLOT_BYTES = Record.size(_SLOT) + Record.size(_GRANT)
_LATENCIES_AT = -(-(_SLOTS_AT + SLOTS * _SLOT_BYTES) // 8) * 8  # aligned to words
_BLOCK_BYTES = 512  # of `st_blocks`, whatever the file system's are
_FILE_BYTES = _LATENCIES_AT + SLOTS * LatencyCounters.BYTES


class SharedCounters:
    """The ledger of one GPU; every process that uses it has its own.

    Args:
        path: The file; made where it is missing. One of another format is set aside.
        now_s: CLOCK_MONOTONIC, s.

    Raises:
        Unavailable: The disk has no room for it.
    """

    def __init__(self, path: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._now_s = now_s
        self._memory = _map(path)
        # One record each: the agent's loop writes the heartbeat, its NVML thread the clock.
        self._heartbeat = Record(self._memory, _HEARTBEAT_AT, _NUMBER)
        self._clock = Record(self._memory, _CLOCK_AT, _NUMBER)
        self._context = Record(self._memory, _CONTEXT_AT, _CONTEXT)
        starts = [_SLOTS_AT + number * _SLOT_BYTES for number in range(SLOTS)]
        self._slots = [Record(self._memory, start, _SLOT) for start in starts]
        self._grants = [
            Record(self._memory, start + Record.size(_SLOT), _GRANT) for start in starts
        ]

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()

    @property
    def damaged(self) -> bool:
        """True if a record has no whole copy, though it was written."""
        records = (self._heartbeat, self._clock, *self._slots, *self._grants)
        return any(record.damaged for record in records)

    # ---- the header: the agent writes ----------------------------------------------------------

    @property
    def clock_ratio(self) -> float:
        """SM clock over the GPU's highest, 0..1."""
        return float((self._clock.read() or (1.0,))[0])

    @property
    def heartbeat_s(self) -> float:
        """The agent's last sign of life, CLOCK_MONOTONIC, s; 0: none yet."""
        return float((self._heartbeat.read() or (0.0,))[0])

    def beat(self) -> None:
        """Write the agent's heartbeat: it looks after the workers."""
        self._heartbeat.write(self._now_s())

    def set_clock_ratio(self, ratio: float) -> None:
        """Set the SM clock over the GPU's highest, 0 < ratio <= 1."""
        if not 0 < ratio <= 1:
            raise InvalidArgument(f"clock ratio must be in (0, 1], got {ratio}")
        self._clock.write(ratio)

    # ---- slots: the worker that owns one writes it ---------------------------------------------

    def slot(self, number: int) -> Slot:
        """Return one slot as it is now."""
        values = self._slots[number].read()
        if values is None:
            return EMPTY
        pid, slice_uuid, segment_id, *rest = values
        return Slot(pid, _text(slice_uuid), _text(segment_id), *rest)

    def slots(self) -> Iterator[Slot]:
        """Yield every slot."""
        return (self.slot(number) for number in range(SLOTS))

    def _used(self) -> Iterator[Slot]:
        """Yield the slots that a worker ever had."""
        return (slot for slot in self.slots() if slot is not EMPTY)

    def write(self, number: int, slot: Slot) -> None:
        """Replace one slot. Only its worker may, and the agent once that worker is dead.

        Raises:
            InvalidArgument: A name is too long.
        """
        pid, slice_uuid, segment_id, *rest = _FIELDS(slot)
        slice_name, segment_name = slice_uuid.encode(), segment_id.encode()
        if len(slice_name) > NAME_BYTES or len(segment_name) > NAME_BYTES:
            field = "slice_uuid" if len(slice_name) > NAME_BYTES else "segment_id"
            raise InvalidArgument(
                f"{field} may take {NAME_BYTES} bytes, got {slice_uuid!r}, {segment_id!r}",
                field=field,
            )
        self._slots[number].write(pid, slice_name, segment_name, *rest)

    def settle(self, number: int) -> None:
        """Close the account of a dead worker: what it had begun is counted up to now.

        Idempotent.
        """
        slot = self.slot(number)
        if slot.pid:
            now_s = self._now_s()
            settled = slot
            if slot.busy_since_s:
                settled = slot.ended(now_s, slot.energy_at(now_s) - slot.active_j, 0)
            self.write(number, replace(settled, pid=0, slice_uuid="", **_NO_SERVER))

    # ---- grants: the agent writes --------------------------------------------------------------

    def grant(self, number: int) -> Grant:
        """Return what the agent granted one slot."""
        values = self._grants[number].read()
        if values is None:
            return Grant()
        busy_power_w, idle_power_w, method = values
        return Grant(busy_power_w, idle_power_w, method.rstrip(b"\0").decode())

    def set_grant(self, number: int, grant: Grant) -> None:
        """Write the power figures of one worker."""
        self._grants[number].write(grant.busy_power_w, grant.idle_power_w, grant.method.encode())

    # ---- latencies: the worker that owns the slot writes ---------------------------------------

    def latencies(self, number: int) -> LatencyCounters:
        """Return the counts of one slot's latencies."""
        return LatencyCounters(self._memory, _LATENCIES_AT + number * LatencyCounters.BYTES)

    # ---- the simulated device's view -----------------------------------------------------------

    def energy_j(self) -> float:
        """Return the modelled active energy of the GPU since the file was made; it only grows."""
        now_s = self._now_s()
        return sum(slot.energy_at(now_s) for slot in self._used())

    def power_w(self) -> float:
        """Return the modelled active power now, W."""
        now_s = self._now_s()
        return sum(slot.power_at(now_s) for slot in self._used())

    def context_s(self) -> float:
        """Return for how long a live process has had the GPU, s; it only grows.

        The time since the last look counts as it is now. Only the agent may call it: it writes.
        """
        now_s = self._now_s()
        held_s, seen_s = self._context.read() or (0.0, now_s)
        if self.in_use():
            held_s += max(now_s - seen_s, 0.0)
        self._context.write(held_s, now_s)
        return float(held_s)

    def in_use(self) -> bool:
        """Return whether a live process has the GPU."""
        return any(slot.pid for slot in self.slots())

    def busy(self, slice_uuid: str) -> bool:
        """Return whether a live process holds the slice."""
        return any(slot.pid and slot.slice_uuid == slice_uuid for slot in self.slots())

    def processes(self) -> Iterator[ProcessActivity]:
        """Yield the live processes that hold a slice."""
        now_s = self._now_s()
        for slot in self.slots():
            if slot.pid:
                running = bool(slot.busy_since_s)
                busy_s = slot.busy_at(now_s)
                yield ProcessActivity(slot.pid, slot.slice_uuid, busy_s, running=running)

    def busy_among(self, numbers: Iterable[int]) -> int:
        """Return how many of these slots' processes run a batch now."""
        return sum(bool(self.slot(number).busy_since_s) for number in numbers)


@contextmanager
def opened(path: Path, *, repaired: bool = False) -> Iterator[SharedCounters]:
    """Open a ledger while the block runs.

    Args:
        path: The file.
        repaired: Set it aside where it is damaged, and begin another: the agent does so at its
            start. Workers that have the damaged one mapped end, because no agent looks after them.

    Raises:
        Unavailable: The disk has no room for it.
    """
    counters = SharedCounters(path)
    if repaired and counters.damaged:
        counters.close()
        set_aside(path, "the checksums of a record are others")
        counters = SharedCounters(path)
    try:
        yield counters
    finally:
        counters.close()


def _head(path: Path) -> bytes:
    """Return the bytes that show a ledger and its version; b"": there is no file."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(len(_PREFIX))
    return b""


def _map(path: Path) -> mmap.mmap:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _head(path) != _PREFIX or path.stat().st_size != _FILE_BYTES:
            _make(path)
        descriptor = os.open(path, os.O_RDWR)
        try:
            _allocate(descriptor)
            return mmap.mmap(descriptor, _FILE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise not_written(path, error) from error


def _make(path: Path) -> None:
    """Put an empty ledger in place of what is there; a process that has that mapped keeps it."""
    magic = _head(path)[: len(_MAGIC)]
    older = magic[:-1] == _MAGIC[:-1] and magic != _MAGIC
    if path.exists() and not older:
        set_aside(path, "it is no ledger, or not all of one")
    with replacing(path, mode=0o600) as draft, draft.open("r+b", buffering=0) as file:
        file.truncate(_FILE_BYTES)
        _allocate(file.fileno())
        file.write(_PREFIX)


def _allocate(descriptor: int) -> None:
    """Allocate all blocks now: if the disk fills up later, a write would raise SIGBUS."""
    status = os.fstat(descriptor)
    if status.st_blocks * _BLOCK_BYTES < status.st_size:
        os.posix_fallocate(descriptor, 0, _FILE_BYTES)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode()
