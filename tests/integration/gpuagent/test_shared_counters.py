"""The ledger: whole records whatever happens, and sums that never go back."""

import mmap
import os
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.core.worker_slot import Grant, Slot
from services.gpuagent.shared_memory.records import Record
from services.gpuagent.shared_memory.shared_counters import SLOTS, SharedCounters, opened
from services.kit.errors import InvalidArgument, Unavailable
from tests.support.full_disk import fill, small_disk

WRITER = """
import sys
from pathlib import Path
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.gpuagent.core.worker_slot import Slot
counters = SharedCounters(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    # Every field has the same number: a mixture of two writes would show.
    counters.write(3, Slot(number, str(number), str(number), *(float(number),) * 6, number, number))
    if number == 1:
        print("ready", flush=True)
"""


class Time:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _start_writer(path: Path) -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def _is_whole(slot: Slot) -> bool:
    return (
        {slot.slice_uuid, slot.segment_id} == {str(slot.pid)}
        and {slot.requests, slot.batches} == {slot.pid}
        and {slot.busy_since_s, slot.power_w, slot.active_j, slot.busy_s} == {float(slot.pid)}
    )  # fmt: skip


def test_a_reader_never_sees_a_torn_record_while_another_process_writes(tmp_path: Path) -> None:
    with opened(tmp_path / "ledger") as counters:
        writer = _start_writer(tmp_path / "ledger")
        try:
            seen = [counters.slot(3)]
            while seen[-1].requests < seen[0].requests + 20_000:
                seen.append(counters.slot(3))
        finally:
            writer.kill()
            writer.communicate()

    assert all(_is_whole(slot) for slot in seen if slot.pid)
    assert [slot.pid for slot in seen] == sorted(slot.pid for slot in seen), "and never goes back"


def test_a_writer_killed_in_the_middle_leaves_a_whole_record(tmp_path: Path) -> None:
    """Whatever instant SIGKILL meets, the record read next is one that was written."""
    with opened(tmp_path / "ledger") as counters:
        for _ in range(5):
            writer = _start_writer(tmp_path / "ledger")
            os.kill(writer.pid, signal.SIGKILL)
            writer.communicate()

            assert _is_whole(counters.slot(3))


@given(torn_bytes=st.integers(0, 27), values=st.lists(st.integers(0, 2**40), min_size=1))
def test_a_half_written_copy_does_not_hide_the_one_before(
    torn_bytes: int, values: list[int]
) -> None:
    layout = struct.Struct("<QQ")
    with mmap.mmap(-1, Record.size(layout)) as memory:
        record = Record(memory, 0, layout)
        for value in values:
            record.write(value, value)
        before = bytes(memory)
        record.write(0xFFFF, 0xFFFF)
        after = bytes(memory)
        changed = 0 if before[:28] != after[:28] else 28
        torn = changed + torn_bytes
        memory[:] = (
            after[:torn] + before[torn:]
            if changed == 0
            else before[:28] + (after[28:torn] + before[torn:])
        )

        assert record.read() in ((values[-1], values[-1]), (0xFFFF, 0xFFFF))


def test_a_slot_comes_back_as_it_was_written(tmp_path: Path) -> None:
    slot = Slot(7, "MIG-x", "s-1", 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 8)
    with opened(tmp_path / "ledger") as counters, opened(tmp_path / "ledger") as other:
        counters.write(5, slot)
        counters.set_grant(5, Grant(10.0, 20.0, "counter"))

        assert other.slot(5) == slot
        assert other.grant(5) == Grant(10.0, 20.0, "counter")
        assert other.slot(4) == Slot()


def test_energy_grows_while_a_batch_runs_but_never_beyond_the_batch(tmp_path: Path) -> None:
    now = Time()
    counters = SharedCounters(tmp_path / "ledger", now)
    counters.write(0, Slot(pid=1, busy_since_s=100.0, power_w=50.0, batch_energy_j=20.0))

    now.now_s = 100.2
    assert (counters.energy_j(), counters.power_w()) == pytest.approx((10.0, 50.0))
    now.now_s = 107.0  # the process was late to say that the batch has ended
    assert (counters.energy_j(), counters.power_w()) == (20.0, 0.0)


@given(
    events=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(["begin", "end", "crash", "reuse"]),
            st.floats(0.0, 5.0),
            st.floats(0.1, 300.0),
        ),
        max_size=40,
    )
)
def test_energy_never_goes_back_whatever_workers_do(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, str, float, float]]
) -> None:
    """Batches begin and end, workers crash and slots are used again; each batch counts once."""
    now, batches = Time(), 0
    counters = SharedCounters(tmp_path_factory.mktemp("ledger") / "ledger", now)
    last_j = 0.0
    for number, event, elapsed_s, power_w in events:
        now.now_s += elapsed_s
        slot = counters.slot(number)
        if event == "begin" and not slot.busy_since_s:
            begun = replace(
                slot, pid=9, busy_since_s=now.now_s, power_w=power_w, batch_energy_j=power_w
            )
            counters.write(number, begun)
            batches += 1
        elif event == "end" and slot.busy_since_s:
            energy_j = slot.batch_energy_j + slot.power_w * elapsed_s
            counters.write(number, slot.ended(now.now_s, energy_j, 1))
        elif event == "crash":
            counters.settle(number)
        elif event == "reuse" and not slot.pid:
            counters.write(number, replace(slot, pid=11, segment_id="other"))
        assert counters.energy_j() >= last_j - 1e-9
        last_j = counters.energy_j()
    unfinished = sum(bool(slot.busy_since_s) for slot in counters.slots())
    assert sum(slot.batches for slot in counters.slots()) == batches - unfinished


def test_settling_a_dead_worker_twice_is_settling_it_once(tmp_path: Path) -> None:
    now = Time()
    counters = SharedCounters(tmp_path / "ledger", now)
    counters.write(
        0, Slot(1, "MIG-x", "s-1", busy_since_s=100.0, power_w=10.0, batch_energy_j=30.0)
    )
    now.now_s = 102.0

    counters.settle(0)
    settled = counters.slot(0)
    counters.settle(0)

    assert counters.slot(0) == settled
    assert settled.active_j == pytest.approx(20.0)
    assert (settled.busy_s, settled.batches) == pytest.approx((2.0, 1))
    assert not counters.busy("MIG-x")


def test_a_slice_is_held_while_a_process_lives_on_it_idle_or_not(tmp_path: Path) -> None:
    counters = SharedCounters(tmp_path / "ledger")
    counters.write(SLOTS - 1, Slot(1, "MIG-x", "s-1"))

    assert counters.busy("MIG-x")
    assert not counters.busy("MIG-y")
    assert counters.busy_among(range(SLOTS)) == 0


def test_heartbeat_and_clock_do_not_overwrite_each_other(tmp_path: Path) -> None:
    counters = SharedCounters(tmp_path / "ledger", Time())
    counters.set_clock_ratio(0.5)
    counters.beat()

    assert (counters.clock_ratio, counters.heartbeat_s) == (0.5, 100.0)
    with pytest.raises(InvalidArgument, match="clock ratio"):
        counters.set_clock_ratio(0.0)


def test_a_file_of_another_format_is_recreated(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_bytes(b"\xff" * 100_000)

    assert SharedCounters(tmp_path / "ledger").slot(0) == Slot()


def test_a_name_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="segment_id may take 128 bytes"):
        SharedCounters(tmp_path / "ledger").write(0, Slot(segment_id="s" * 129))


def _damaged(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def _asides(path: Path) -> list[str]:
    return [each.name for each in path.parent.iterdir() if ".damaged-" in each.name]


@given(st.integers(0, 7), st.integers(0, 300), st.booleans())
def test_a_record_without_a_whole_copy_is_no_figure(
    ledger: Path, bit: int, offset: int, older: bool
) -> None:
    """One copy that is damaged leaves the other; both damaged, and the ledger is begun again."""
    ledger.unlink(missing_ok=True)
    with opened(ledger) as counters:
        counters.write(0, Slot(1, "a", "s-1", requests=1))
        counters.write(0, Slot(1, "a", "s-1", requests=2))
        copies = [counters._slots[0]._offsets[1 - older], counters._slots[0]._offsets[older]]
    content = ledger.read_bytes()
    for count, start in enumerate(copies, 1):
        place = start + offset
        _damaged(ledger, place, bytes([content[place] ^ 1 << bit]))
        with opened(ledger, repaired=True) as counters:
            expected = {1, 2} if count == 1 else {0}
            assert counters.slot(0).requests in expected

    assert len(_asides(ledger)) == 1
    for name in _asides(ledger):
        ledger.with_name(name).unlink()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path for ledgers that are damaged."""
    return tmp_path_factory.mktemp("damaged") / "gpu.ledger"


@pytest.mark.parametrize("size", [0, 5, 4096, "zeros"])
def test_a_ledger_that_was_cut_or_zeroed_is_set_aside(tmp_path: Path, size: int | str) -> None:
    path = tmp_path / "ledger"
    with opened(path) as counters:
        counters.write(0, Slot(1, "a", "s-1", requests=2))
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)) if size == "zeros" else whole[: int(size)])

    with opened(path, repaired=True) as counters:
        assert counters.slot(0) == Slot()
        assert path.stat().st_size == len(whole)
    assert len(_asides(path)) == 1


def test_all_blocks_are_the_ledgers_before_it_is_mapped(tmp_path: Path) -> None:
    """Of a hole, a write to a full disk is SIGBUS: also in a ledger that an older agent made."""
    with opened(tmp_path / "ledger"):
        size = (tmp_path / "ledger").stat().st_size
    content = (tmp_path / "ledger").read_bytes()
    with (tmp_path / "old").open("wb") as sparse:
        sparse.write(content.rstrip(b"\0"))
        sparse.truncate(size)

    with opened(tmp_path / "old"):
        pass

    for name in ("ledger", "old"):
        assert (tmp_path / name).stat().st_blocks * 512 >= size


def test_a_full_disk_takes_no_new_ledger_and_every_batch_of_an_old_one(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, opened(disk / "ledger") as counters:
        ballast = fill(disk)
        for number in range(SLOTS):
            counters.write(number, Slot(1, "a", "s-1", requests=7))
            counters.latencies(number).add(0.05)
        with opened(disk / "ledger") as again:
            assert sum(slot.requests for slot in again.slots()) == 7 * SLOTS
        with pytest.raises(Unavailable, match="No space left") as refused:
            SharedCounters(disk / "other")
        ballast.unlink()
        SharedCounters(disk / "other").close()

    assert refused.value.reason == "DISK_FULL"
