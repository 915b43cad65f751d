"""Machines of one process: a loop in virtual time, and processes that end between two callbacks.

A process is a context: every task, callback and timer that it begins runs in copies of it. One that
is killed runs nothing more, no `finally` either. `install` replaces parts of the operating system;
call it before services are imported, for some take `time.monotonic` over as a default.
"""

from __future__ import annotations

import asyncio
import fcntl
import heapq
import os
import random
import sqlite3
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final

from tests.support.virtual_loop import VirtualLoop

EPOCH: Final = datetime(2026, 6, 1, tzinfo=UTC)
_AT_ONCE: Final = ("cursor", "fetchall", "close")
"""Calls of SQLite's that take no time here: its statements and ends of transactions do."""

_BUSY_S: Final = 5.0
"""Time after which SQLite gives up waiting for a lock, as the product has it, s."""

cpu_s = time.process_time
rng = random.Random()
jumps: dict[str, float] = {}
"""Seconds by which the wall clocks of machines are wrong, by machine."""

started: dict[int, Process] = {}
"""Every process of the history, dead ones too: a task that is collected would run its `finally`."""


class Process:
    """A process of a machine.

    Attributes:
        name, machine: What it is, and the address of the machine that it runs on.
        pid: Its number.
        alive: False once it has ended.
        held: Callbacks to run once it continues; None: it is not stopped.
        fuse: Callbacks after which it dies; 0: it does not.
        on_death: Called when it ends.
        facts: Objects of its service that invariants look at.
    """

    def __init__(self, name: str, machine: str) -> None:
        self.name, self.machine, self.pid, self.alive = name, machine, 1001 + len(started), True
        self.held: list[Any] | None = None
        self.fuse = 0
        self.locks: dict[int, None] = {}
        self.databases: list[sqlite3.Connection] = []
        self.on_death: list[Callable[[], object]] = []
        self.facts: dict[str, Any] = {}
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = Context()
        self.context.run(current.set, self)
        started[self.pid] = self

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        loop = asyncio.get_running_loop()
        return loop.create_task(work, name=self.name, context=self.context.copy())

    def kill(self) -> None:
        """End it as SIGKILL does; files stay as they are."""
        if self.alive:
            self.alive = False
            for descriptor in tuple(self.locks):
                os.close(descriptor)
            for database in self.databases:
                with suppress(sqlite3.Error):  # closed before; a statement left open would keep it
                    database.rollback()
                database.close()
            for each in self.on_death:
                each()

    def pause(self) -> None:
        """Stop it as SIGSTOP does."""
        if self.held is None:
            self.held = []

    def go_on(self) -> None:
        """Continue it as SIGCONT does."""
        held, self.held = self.held or [], None
        loop: Any = asyncio.get_running_loop()
        loop._ready.extend(held)

    def runs(self, handle: Any) -> bool:
        """Return whether a callback may run now; one of a stopped process is kept."""
        if self.alive and self.held is None:
            if self.fuse:
                self.fuse -= 1
                if not self.fuse:
                    self.kill()
            return self.alive
        if self.alive and self.held is not None:
            self.held.append(handle)
        return False


current: ContextVar[Process] = ContextVar("process")


def _runs(handle: Any) -> bool:
    process = handle._context.get(current)
    return process is None or process.runs(handle)


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        if not self.cancelled() and _runs(self):
            super()._run()


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def __lt__(self, other: Any) -> bool:
        return self._when < other._when  # type: ignore[no-any-return,attr-defined]

    def _run(self) -> None:
        if not self.cancelled() and _runs(self):
            super()._run()


class _Task(asyncio.Task[Any]):
    """A task whose place in a set is that of its beginning: a TaskGroup cancels in that order."""

    begun = 0

    def __init__(self, work: Any, *, context: Context, **more: Any) -> None:
        _Task.begun += 1
        self._number = _Task.begun
        super().__init__(work, context=context, **more)
        process = context.get(current)
        if process is not None:
            process.tasks[self] = None
            self.add_done_callback(lambda task: process.tasks.pop(task, None))

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Loop(VirtualLoop):
    """A virtual loop that runs no callback of a process that is dead or stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.set_task_factory(_task)

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        loop: Any = self
        loop._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback."""
        timer: Any = _Timer(when, callback, args, self, context)
        loop: Any = self
        heapq.heappush(loop._scheduled, timer)
        timer._scheduled = True
        return timer  # type: ignore[no-any-return]

    def run_in_executor(self, _executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Do a thread's work at once, a drawn moment later."""
        return _later(partial(func, *args), rng.uniform(0.0002, 0.002))


def _task(loop: Any, work: Any, context: Context | None = None) -> Any:
    return _Task(work, loop=loop, context=context or copy_context())


def now_s() -> float:
    """Return virtual seconds since the beginning of the history."""
    loop = asyncio._get_running_loop()
    return loop.time() if loop is not None else 0.0


def _wall() -> datetime:
    """Return the time of the current machine's wall clock."""
    process = current.get(None)
    wrong_s = jumps.get(process.machine, 0.0) if process is not None else 0.0
    return EPOCH + timedelta(seconds=now_s() + wrong_s)


def in_process(
    process: Process | None, after_s: float, work: Callable[..., Any], *args: Any
) -> None:
    """Schedule work of a process; None: of no process."""
    context = Context() if process is None else process.context.copy()
    asyncio.get_running_loop().call_later(after_s, work, *args, context=context)


def _later(
    work: Callable[[], Any], after_s: float, answer: Any = None, *, waits: bool = False
) -> Any:
    """Return a future of work that is done after a time, and answered a moment later.

    Args:
        work: What a thread would do.
        after_s: When, s.
        answer: The future; None: a new one.
        waits: A database that another process has locked is tried again.
    """
    loop = asyncio.get_running_loop()
    future = loop.create_future() if answer is None else answer
    give_up_s = loop.time() + _BUSY_S

    def do() -> None:
        try:
            done = partial(future.set_result, work())
        except BaseException as error:  # noqa: BLE001 - a thread's errors are its caller's
            if waits and "locked" in str(error) and loop.time() < give_up_s:
                loop.call_later(0.01, do)
                return
            done = partial(future.set_exception, error)
        loop.call_later(after_s / 5, lambda: future.done() or done())

    loop.call_later(after_s, do)
    return future


class Disk:
    """The disk of the planners' database.

    Attributes:
        fails: SQLite's error of each commit that has written; "": there is room.
        changes: Rows that each connection had changed at its last commit.
        ended: Called with "commit" or "rollback" once a transaction has ended so.

    It stands for the queue to aiosqlite's thread: a process that is killed meanwhile loses its open
    transaction, or the answer to its commit.
    """

    fails = ""
    changes: ClassVar[dict[int, int]] = {}
    ended: ClassVar[Callable[[str], object]] = staticmethod(lambda _: None)

    def put_nowait(self, item: Any) -> None:
        """Do what the thread would do."""
        answer, work = item
        method = getattr(work, "func", work)
        name = getattr(method, "__name__", "")

        def allowed() -> Any:
            if name == "commit":
                database = method.__self__
                wrote = database.total_changes != Disk.changes.get(id(database), 0)
                Disk.changes[id(database)] = database.total_changes
                if wrote and Disk.fails:
                    raise sqlite3.OperationalError(Disk.fails)
            result = work()
            if name in {"commit", "rollback"}:
                Disk.ended(name)
            return result

        def connected(future: Any) -> None:
            process = current.get(None)
            if process is not None and not future.exception():
                future.result().execute("PRAGMA busy_timeout = 0").close()
                process.databases.append(future.result())

        if name in _AT_ONCE:
            answer.set_result(work())
            return
        future = _later(allowed, rng.uniform(0.0001, 0.001), answer, waits=True)
        if name == "connector":
            future.add_done_callback(connected)


class _NoThread:
    def start(self) -> None:
        """Do nothing: `Disk` does it."""


class _Nvml:
    """libnvidia-ml of the process that runs; pynvml has room for one."""

    def __getattr__(self, symbol: str) -> Any:
        getattr(current.get().facts["nvml"], symbol)  # AttributeError: there is no such function

        def call(*args: Any) -> Any:  # pynvml keeps it for all processes
            return getattr(current.get().facts["nvml"], symbol)(*args)

        return call


def patch(where: Any, **values: Any) -> None:
    """Replace names of a module or class."""
    for name, value in values.items():
        setattr(where, name, value)


def begin(seed: int) -> None:
    """Draw everything from a seed from now on."""
    rng.seed(seed)
    random.seed(rng.getrandbits(64))


def install() -> None:
    """Replace time, randomness, process ids, file locks, threads of SQLite, and libnvidia-ml."""
    names = ("monotonic", "perf_counter", "thread_time", "process_time")
    patch(time, **dict.fromkeys(names, now_s))
    patch(time, time=lambda: _wall().timestamp(), clock_gettime=lambda _: now_s())
    flock, close, pid = fcntl.flock, os.close, os.getpid

    class Seeded(random.Random):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(rng.getrandbits(64) if seed is None else seed)

    def locked(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if (process := current.get(None)) is not None:
            process.locks[descriptor] = None

    def closed(descriptor: int) -> None:
        if (process := current.get(None)) is not None:
            process.locks.pop(descriptor, None)
        for process in started.values():
            process.locks.pop(descriptor, None)
        close(descriptor)

    patch(random, Random=Seeded, _urandom=rng.randbytes)
    patch(os, urandom=rng.randbytes, fsync=lambda _: None)
    patch(os, getpid=lambda: p.pid if (p := current.get(None)) else pid())
    patch(fcntl, flock=locked)
    patch(os, close=closed)

    import aiosqlite.core  # noqa: PLC0415 - after the clock was replaced
    import pynvml  # noqa: PLC0415

    from services.gpuagent.devices import hardware  # noqa: PLC0415
    from services.kit import clock, lock_file  # noqa: PLC0415

    connected = aiosqlite.core.Connection.__init__

    def connection(self: Any, *args: Any, **kwargs: Any) -> None:
        connected(self, *args, **kwargs)
        self._tx, self._thread = Disk(), _NoThread()

    patch(aiosqlite.core.Connection, __init__=connection, __del__=lambda _: None)
    patch(clock.RealClock, now=lambda _: _wall())
    patch(lock_file, datetime=_Datetime)
    patch(pynvml, nvmlLib=_Nvml())
    patch(hardware, install=_install_nvml)


class _Datetime(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        """Return virtual time."""
        return _wall().astimezone(tz)


def _install_nvml(library: Any) -> Callable[[], object]:
    current.get().facts["nvml"] = library
    return lambda: None
