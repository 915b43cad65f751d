"""Services that tests start as processes are forked from one that has imported them already.

A third of the suite's processor time went into imports: half a second in each worker, two in each
planner. A test that starts `python -m services...` by `subprocess` or asyncio gets its own child
nevertheless: with its pid, pipes, environment, working directory, session, command line and exit
status. What a test starts starts its workers the same way.

Only on Linux, and only what the suite starts time and again; everything else, and what that starts,
is started as usual. With TEST_PROCESSES=started all of it is.

A zygote forks a process that forks the child and ends, so that the child becomes that of the
caller, which is the subreaper meanwhile (prctl(2)).

pytest's own workers are forked, too, from a process that has collected the tests once: they find
every module imported.
"""

import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final

from prometheus_client import REGISTRY
from prometheus_client.registry import Collector

from tests.support.paths import ROOT

_SWITCH: Final = "TEST_PROCESSES"
WORKER: Final = "services.gpuagent.worker"
COMMANDS: Final = "services.cli"
TESTS: Final = "pytest"
READER: Final = "services.kit.process.confined_child"
OF_WORKERS: Final = ("services.gpuagent.worker.app",)
SERVICES: Final = ("batch", "carbon", "gpuagent", "planner", "predictor", "router")
OF_SERVICES: Final = (
    *OF_WORKERS,
    "services.cli.commands.serve",
    *(f"services.{service}.app" for service in SERVICES),
)
OF_READERS: Final = ("services.kit.process.confinement", "services.cli.init.times")

_SUBREAPER: Final = 36
_READY: Final = 3
"""Descriptor that a child closes once it is what it is to be; the caller waits for that,
as for exec."""

_MOST_BYTES: Final = 2**18
_ARGUMENT_ROOM: Final = "-" * 4096
_ENVIRONMENT_ROOM: Final = {"ZYGOTE_ROOM": "-" * 2**16}
_READ_AT_START: Final = ("PYTHON", "LD_")
"""Variables that the interpreter and the loader read: the zygote's hold for all that it forks."""

_libc = ctypes.CDLL(None, use_errno=True)


class Zygote:
    """A process that has imported what it forks.

    Args:
        connection: To it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._turn = threading.Lock()

    @classmethod
    def started(cls, *imports: str) -> "Zygote":
        """Start one that imports these modules, or that collects tests: TESTS and its arguments."""
        return cls.staged(imports)[0]

    @classmethod
    def staged(cls, *stages: Sequence[str]) -> list["Zygote"]:
        """Start one for each stage: it imports these modules, and has those of all before it."""
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in stages]
        its = [each for _, each in pairs]
        lines = [
            " ".join((str(end.fileno()), *stage)) for end, stage in zip(its, stages, strict=True)
        ]
        subprocess.Popen(  # it ends with our side of the connections
            [sys.executable, "-m", __name__, _ARGUMENT_ROOM, *lines],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **_ENVIRONMENT_ROOM},
            pass_fds=[end.fileno() for end in its],
            start_new_session=True,
        ).returncode = 0  # no process waits for it
        for end in its:
            end.close()
        return [cls(ours) for ours, _ in pairs]

    def close(self) -> None:
        """End the zygote; the processes that it forked run on."""
        self._connection.close()

    def wait(self) -> None:
        """Wait until it has imported what it forks."""
        self._connection.recv(_MOST_BYTES)

    def fork(self, order: Mapping[str, Any], files: Sequence[int]) -> int:
        """Return the pid of a new child of this process.

        Raises:
            ChildProcessError: There is none.
        """
        with self._turn:
            _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._connection, [json.dumps(order).encode()], files)
                reply = self._connection.recv(_MOST_BYTES)
            finally:
                _libc.prctl(_SUBREAPER, 0, 0, 0, 0)
        if not reply.isdigit():  # never a pid of -1, which is every process there is
            raise ChildProcessError("the zygote forked nothing")
        return int(reply)


def wanted() -> bool:
    """Return whether services are to be forked."""
    return sys.platform == "linux" and os.environ.get(_SWITCH) != "started"


def started() -> dict[str, Zygote]:
    """Return zygotes by the module that they are for."""
    workers, services = Zygote.staged(OF_WORKERS, OF_SERVICES)
    workers.wait()
    services.wait()
    return {WORKER: workers, COMMANDS: services}


def install(zygotes: Mapping[str, Zygote]) -> Callable[[], None]:
    """Fork this process's services from zygotes; return a function that undoes it.

    Args:
        zygotes: By the module that they are for; others are started as usual.
    """
    start = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    names = inspect.signature(start)
    preset = _read_at_start(os.environ)

    @wraps(start)  # so that it can be installed over one that is
    def execute(self: subprocess.Popen[bytes], *positional: Any) -> None:
        how = names.bind(self, *positional).arguments
        command = how["args"]
        module = module_of(command)
        plain = not (how["pass_fds"] or how["preexec_fn"] or how["executable"] or how["shell"])
        owner = [how[each] for each in ("gid", "gids", "uid")]
        environment = dict(os.environ if how["env"] is None else how["env"])
        alike = _read_at_start(environment) == preset
        if not (module in zygotes and plain and alike and owner == [None, None, None]):
            start(self, *positional)
            return
        given = [how[each] for each in ("p2cread", "c2pwrite", "errwrite")]
        order = {
            "command": [str(each) for each in command],
            "module": module,
            "environment": environment,
            "folder": os.fspath(how["cwd"] or Path.cwd()),
            "session": bool(how["start_new_session"]),
        }
        files = [file if file >= 0 else number for number, file in enumerate(given)]
        self.pid = zygotes[module].fork(order, files)
        self._child_created = True  # type: ignore[attr-defined]
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(how[each] for each in pipes))  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
    return lambda: setattr(subprocess.Popen, "_execute_child", start)


def module_of(command: object) -> str:
    """Return the module that a command starts, or "" where it is started as usual."""
    if not isinstance(command, (list, tuple)) or str(command[0]) != sys.executable:
        return ""
    if list(command[1:-1]) == ["-u", "-c"]:  # as execnet starts the workers of pytest-xdist
        return TESTS
    words = [str(each) for each in command[1:] if each != "-P"]
    if words in (["-m", READER], ["-m", WORKER, *words[2:]]):
        return words[1]
    serves = words[2:3] and words[2] in SERVICES and words[3:4] == ["serve"]
    return COMMANDS if words[:2] == ["-m", COMMANDS] and serves else ""


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(_READ_AT_START)}


# ---- the zygote ---------------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    """Fork whatever is requested, until the caller has gone; run it in the child."""
    while True:
        order = _next(connection)
        if order is None:
            return
        own = _own_zygote() if "gpuagent" in order["command"] else None
        if own is not None and own.its_side:
            connection = own.connection
            continue
        _become(order)
        os.close(_READY)
        if own is not None:
            install({WORKER: Zygote(own.connection)})
        if order["module"] == TESTS:
            _run_line(order["command"][-1])
            return
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        return


def _run_line(line: str) -> None:
    """Run a line as `python -c` does: in a main module that has no file."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(line, main.__dict__)  # noqa: S102 - execnet's, which we start


def _next(connection: socket.socket) -> dict[str, Any] | None:
    """Serve until the end; return in each child, with what it is to be."""
    while True:
        try:
            order_bytes, files, *_ = socket.recv_fds(connection, _MOST_BYTES, 3)
        except ConnectionResetError:  # closed before it read that this one is ready
            return None
        if not order_bytes:
            return None
        (pid_from, pid_to), (may_go, go), (ready, is_ready) = os.pipe(), os.pipe(), os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.close(is_ready)
                os.write(pid_to, str(child).encode())
                os._exit(0)
            os.close(go)
            os.read(may_go, 1)  # until the process between has gone
            for number, file in enumerate(files):
                os.dup2(file, number)
            os.dup2(is_ready, _READY)
            os.closerange(_READY + 1, 2**16)
            connection.detach()
            order: dict[str, Any] = json.loads(order_bytes)
            return order
        os.waitpid(between, 0)
        os.close(pid_to)  # or there is no end where nothing was forked
        pid = os.read(pid_from, 16)
        os.close(go)
        os.close(is_ready)
        os.read(ready, 1)
        for file in (*files, pid_from, may_go, ready):
            os.close(file)
        connection.send(pid or b"none")


@dataclass(frozen=True, slots=True)
class _Own:
    """A zygote that an agent has for its workers. Attributes: its_side (this process is it)."""

    connection: socket.socket
    its_side: bool


def _own_zygote() -> _Own:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        its.close()
        return _Own(ours, its_side=False)
    ours.close()
    os.close(_READY)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # or a reader of the agent's output waits for this one's end
        os.dup2(nothing, number)
    os.close(nothing)
    return _Own(its, its_side=True)


_metrics_of: Final[dict[Collector, str]] = {}
"""Module that a metric was made in."""


def _note_metrics() -> None:
    """Note from now on who makes metrics: they are the whole process's."""
    register = REGISTRY.register

    def noting(metric: Collector) -> None:
        frame = sys._getframe(1)
        while frame.f_back and not frame.f_globals["__name__"].startswith("services."):
            frame = frame.f_back
        _metrics_of[metric] = frame.f_globals["__name__"]
        register(metric)

    REGISTRY.register = noting  # type: ignore[assignment]


def _forget_metrics(service: str) -> None:
    """Forget the metrics of other services, and of what only they import."""
    others = tuple(f"services.{each}." for each in SERVICES if each != service)
    if service in {"predictor", "router"}:
        others += ("services.kit.mqtt.",)
    for metric, module in _metrics_of.items():
        if module.startswith(others):
            REGISTRY.unregister(metric)


def _become(order: Mapping[str, Any]) -> None:
    """Be in every respect that others see what a started process would be."""
    if order["session"]:
        os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    command: list[str] = order["command"]
    if order["module"] == COMMANDS:
        _forget_metrics(command[command.index("serve") - 1])
    sys.argv = command[command.index("-m") + 1 :] if "-m" in command else command[-2:-1]
    sys.orig_argv = command
    _show(command, order["environment"])


def _show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write this process's /proc/PID/cmdline and environ, as setproctitle(3) does."""
    places = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    arguments, its_end, variables, their_end = (int(each) for each in places[45:49])
    room = its_end - arguments
    title = " ".join(command).encode()[: room - 2]
    # No zero at the end of the room: the kernel then ends the command line at the first.
    ctypes.memmove(arguments, title.ljust(room - 1, b"\0") + b"-", room)
    pairs = b"".join(f"{key}={value}\0".encode() for key, value in environment.items())
    room = their_end - variables
    ctypes.memmove(variables, pairs[:room].ljust(room, b"\0"), room)


def _collect(arguments: Sequence[str]) -> None:
    """Collect tests, so that all their modules are imported; a worker says what cannot be."""
    import pytest  # noqa: PLC0415 - zygotes of services do not need it

    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
        pytest.main(["--collect-only", "--numprocesses", "0", *arguments])


def main() -> None:
    """Import what is to be forked, and serve."""
    _note_metrics()
    *stages, last = (line.split(" ") for line in sys.argv[2:])
    for number, *imports in stages:
        _import(imports)
        if not os.fork():
            _wait_for_orders(int(number))
            return
        os.close(int(number))
    number, *imports = last
    _import(imports)
    _wait_for_orders(int(number))


def _import(modules: Sequence[str]) -> None:
    if modules[0] == TESTS:
        _collect(modules[1:])
    else:
        for module in modules:
            importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _wait_for_orders(number: int) -> None:
    connection = socket.socket(fileno=number)
    connection.send(b"ready")
    serve(connection)


if __name__ == "__main__":
    main()
