"""The guard of event loops: a test fails in which a callback holds its loop.

`tests/conftest.py` has the fixture, so that it guards all tests.
"""

import asyncio
import gc
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pytest

_WAITED_S = 1.0


def _slowness() -> float:
    """Return how many times slower than the cores the limit was chosen on this one is now, >= 1."""
    began_s = time.thread_time()
    sum(range(2_000_000))
    return max(1.0, (time.thread_time() - began_s) / 0.04)


_COMPUTED_S = 0.25
_run_handle = asyncio.Handle._run


class _Queue:
    """Time that the main thread was ready to run while the machine ran something else, s."""

    _file = -1

    def open(self) -> None:
        """Open what the kernel says of this thread."""
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def waited_s(self) -> float:
        if self._file < 0 or threading.current_thread() is not threading.main_thread():
            return -time.perf_counter()  # unknown: then all time off the processor may have been it
        return int(os.pread(self._file, 64, 0).split()[1]) / 1e9


class _Collector:
    """Time of the garbage collector, which looks through what thousands of tests keep.

    Attributes:
        ran_s: On the processor, s.
        elsewhere_s: In other threads, s: the main thread waits, since a collection keeps the lock.
    """

    def __init__(self) -> None:
        self.ran_s = self.elsewhere_s = 0.0
        self._began = (0.0, 0.0)
        gc.callbacks.append(self)

    def __call__(self, phase: str, _: Mapping[str, int]) -> None:
        now = time.thread_time(), time.perf_counter()
        if phase == "start":
            self._began = now
            return
        self.ran_s += now[0] - self._began[0]
        if threading.current_thread() is not threading.main_thread():
            self.elsewhere_s += now[1] - self._began[1]


class _Disk:
    """Time that any task of the machine waited for a disk, s; 0 where the kernel reports none."""

    REPORTED_LATE_S: Final = 2.5  # PSI's totals are brought up to date every two seconds

    _file = -1
    _read = (-math.inf, 0.0)

    def open(self) -> None:
        """Open what the kernel says of all disks."""
        try:
            self._file = os.open("/proc/pressure/io", os.O_RDONLY)
            self.waited_s(0.0)
        except OSError:  # older kernels open it where it is switched off, and read nothing
            self._file = -1

    def waited_s(self, now_s: float) -> float:
        """Return how long until a moment ago, s."""
        if self._file >= 0 and now_s - self._read[0] > 0.2:  # callbacks are many
            some, _, _ = os.pread(self._file, 512, 0).partition(b"\n")
            self._read = (now_s, int(some.rpartition(b"=")[2]) / 1e6)
        return self._read[1]


_queue, _collector, _disk = _Queue(), _Collector(), _Disk()


def open_clocks() -> None:
    """Open what the kernel says of this process's main thread and of disks."""
    _queue.open()
    _disk.open()


_FRESH_S: Final = 0.005
"""Age of a reading up to which the next callback does without its own."""


class _Reading(NamedTuple):
    """Times of a thread at a moment, s; to read them takes longer than most callbacks."""

    at_s: float = -math.inf
    thread: int = 0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    collected_s: float = 0.0
    elsewhere_s: float = 0.0
    disk_s: float = 0.0

    @classmethod
    def now(cls) -> "_Reading":
        at_s = time.perf_counter()
        return cls(
            at_s,
            threading.get_ident(),
            time.thread_time(),
            _queue.waited_s(),
            _collector.ran_s,
            _collector.elsewhere_s,
            _disk.waited_s(at_s),
        )


@pytest.fixture(autouse=True)
def loop_is_never_held(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail a test in which a callback computed for 0.25 s of a quick core, or waited for a second.

    Computing is the thread's own processor time, compared with how quick the core is right then: a
    core that is shared computes the same for twice the time. Waiting leaves out the time in which
    the thread could have run but the machine ran something else, in which another thread collected
    garbage, and in which the disk kept anybody waiting. So a busy machine changes neither; waiting
    has the higher limit because a wait for the interpreter's lock looks the same.
    """
    held: list[tuple[float, float, str]] = []
    before = _Reading()

    def run(handle: asyncio.Handle) -> None:
        nonlocal before
        started_s = time.perf_counter()
        if started_s - before.at_s > _FRESH_S or before.thread != threading.get_ident():
            before = _Reading.now()
        was = before
        _run_handle(handle)
        took_s = time.perf_counter() - started_s
        if took_s > _COMPUTED_S:
            now = _Reading.now()
            on_cpu_s = now.cpu_s - was.cpu_s
            computed_s = on_cpu_s - (now.collected_s - was.collected_s)
            waited_s = took_s - on_cpu_s - abs(now.queued_s - was.queued_s)
            waited_s -= now.elsewhere_s - was.elsewhere_s
            what = f"{computed_s:.2f} s computed, {waited_s:.2f} s waited: {_owner(handle)!r}"
            if computed_s > _COMPUTED_S and computed_s > _COMPUTED_S * _slowness():
                held.append((math.inf, was.disk_s, what))
            elif waited_s > _WAITED_S:
                held.append((waited_s, was.disk_s, what))

    if request.node.get_closest_marker("may_block") is None:
        monkeypatch.setattr(asyncio.Handle, "_run", run)
    yield
    if held:
        time.sleep(_Disk.REPORTED_LATE_S)
        disk_s = _disk.waited_s(time.perf_counter())
        reasons = [
            what for waited_s, was_s, what in held if waited_s - (disk_s - was_s) > _WAITED_S
        ]
        if reasons:
            pytest.fail(f"held the event loop: {'; '.join(reasons)}")


def _owner(handle: Any) -> object:
    """Return the task that a callback steps, or else the callback."""
    return getattr(handle._callback, "__self__", handle)
