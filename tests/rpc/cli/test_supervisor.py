"""The supervisor: real processes are kept running, stopped in order, and none is left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from services.kit.config.loader import load
from services.kit.errors import DeadlineExceeded, FailedPrecondition
from services.kit.net import free_port
from services.local.up.orphans import COOKIE, PARENT, bearers
from services.local.up.process import Program, State
from services.local.up.suite import Suite, programs
from tests.support.paths import ROOT

SLEEP = "import time; time.sleep(60)"


def python(name: str, code: str, health: str = "") -> Program:
    return Program(name, (sys.executable, "-c", code), health)


def alive(pid: int) -> bool:
    """A zombie without a reaper, as under a container's PID 1, has ended too."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], bool]) -> None:
    """Processes outside this one cannot set an event: poll, but with a limit."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    pytest.fail("it never came true")


async def test_every_program_runs_inside_the_block_and_none_after(tmp_path: Path) -> None:
    async with Suite([python("one", SLEEP), python("two", SLEEP)], tmp_path) as suite:
        pids = suite.processes
        assert pids.keys() == {"one", "two"}
        assert all(alive(pid) for pid in pids.values())
    assert not any(alive(pid) for pid in pids.values())
    assert suite.processes == {}


async def test_a_killed_program_comes_back_and_the_others_do_not_notice(tmp_path: Path) -> None:
    async with Suite([python("one", SLEEP), python("two", SLEEP)], tmp_path) as suite:
        before = suite.processes
        os.kill(suite.processes["one"], signal.SIGKILL)
        await until(lambda: suite.processes.get("one", before["one"]) != before["one"])
        assert suite.processes["two"] == before["two"]
        assert suite.members["one"].restarts == 1
        assert suite.members["two"].restarts == 0


async def test_programs_stop_in_reverse_order(tmp_path: Path) -> None:
    log = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        f"    open({str(log)!r}, 'a').write(sys.argv[1] + ' ')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"open({str(log)!r} + sys.argv[1], 'w')\n"
        "time.sleep(60)"
    )
    names = ("carbon", "planner", "router")
    programs = [Program(name, (sys.executable, "-c", code, name)) for name in names]
    async with Suite(programs, tmp_path):
        await until(lambda: all(Path(f"{log}{name}").exists() for name in names))
    assert log.read_text().split() == ["router", "planner", "carbon"]


async def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(ready)!r}, 'w'); time.sleep(60)"
    )
    async with Suite([python("deaf", code)], tmp_path, grace_s=0.2) as suite:
        await until(ready.exists)
        pid = suite.processes["deaf"]
    assert not alive(pid)


async def test_what_a_killed_program_left_is_ended_too(tmp_path: Path) -> None:
    """Workers live in sessions of their own; killing their parent must not leave them for ever."""
    note = tmp_path / "grandchild"
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    async with Suite([python("parent", code)], tmp_path) as suite:
        await until(lambda: note.exists() and note.read_text().isdigit())
        grandchild = int(note.read_text())
        note.unlink()
        os.kill(suite.processes["parent"], signal.SIGKILL)
        await until(lambda: note.exists() and note.read_text().isdigit())
        assert alive(grandchild), "it outlives its parent"
    assert not alive(grandchild)
    assert not alive(int(note.read_text()))


async def test_cookies_distinguish_suites(tmp_path: Path) -> None:
    environment = {**os.environ, COOKIE: "one-of-a-kind"}
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", SLEEP, env=environment)
    try:
        await until(lambda: bearers("one-of-a-kind") == [child.pid])
        assert bearers("one-of-a-kin") == []
    finally:
        child.kill()
        await child.wait()


async def test_a_program_that_never_served_is_an_error_that_quotes_its_log(tmp_path: Path) -> None:
    broken = python("planner", "import sys; sys.exit('no such table: plans')", "127.0.0.1:1")
    suite = Suite([python("carbon", SLEEP), broken], tmp_path)
    with pytest.raises(ExceptionGroup) as caught:
        await suite.__aenter__()
    (error,) = caught.value.exceptions
    assert isinstance(error, FailedPrecondition)
    assert "planner ended with status 1 before it served" in str(error)
    assert "no such table: plans" in str(error)
    assert suite.processes == {}


async def test_a_program_that_does_not_serve_in_time_is_named(tmp_path: Path) -> None:
    silent = python("router", SLEEP, f"127.0.0.1:{free_port()}")
    suite = Suite([python("carbon", SLEEP), silent], tmp_path, start_s=0.5)
    with pytest.raises(DeadlineExceeded, match=r"router did not serve at 127[^ ]* within 0\.5 s"):
        await suite.__aenter__()
    assert suite.processes == {}


async def test_entering_waits_until_grpc_health_says_serving(tmp_path: Path) -> None:
    """A real health service that starts as NOT_SERVING."""
    address = f"127.0.0.1:{free_port()}"
    ready = tmp_path / "ready"
    code = (
        "import asyncio, pathlib\n"
        "from services.kit.rpc import serving\n"
        "async def main():\n"
        f"    async with serving({address!r}, lambda _: None, (), ready=False) as server:\n"
        "        await asyncio.sleep(0.3)\n"
        f"        pathlib.Path({str(ready)!r}).touch()\n"
        "        await server.set_ready(ready=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    async with Suite([python("carbon", code, address)], tmp_path) as suite:
        assert ready.exists()
        assert suite.members["carbon"].state is State.SERVING
        os.kill(suite.processes["carbon"], signal.SIGINT)
        await until(lambda: suite.members["carbon"].state is State.RESTARTING)


async def test_cancelling_the_start_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-c while the suite starts."""
    suite = Suite([python("router", SLEEP, f"127.0.0.1:{free_port()}")], tmp_path)
    starting = asyncio.create_task(suite.__aenter__())
    await until(lambda: bool(suite.processes))
    (pid,) = suite.processes.values()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not alive(pid)


async def test_a_process_whose_parent_died_before_its_request_to_the_kernel_ends_by_itself() -> (
    None
):
    """No signal reports a supervisor that was killed between a start and that request."""
    code = f"from services.local.up.orphans import end_with_parent; end_with_parent(); {SLEEP}"
    orphan = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env={**os.environ, PARENT: "1"}
    )

    assert await asyncio.wait_for(orphan.wait(), 45) == -signal.SIGTERM


async def test_a_folder_services_where_the_suite_is_started_is_not_imported(tmp_path: Path) -> None:
    """A user's own package of that name lies beside their deployment file."""
    decoy = tmp_path / "services"
    decoy.mkdir()
    (decoy / "__init__.py").write_text("raise SystemExit('the decoy was imported')")
    deployment = load(ROOT / "cinquefoil.yaml")
    for program in programs(deployment, tmp_path / "cinquefoil.yaml"):
        started = await asyncio.create_subprocess_exec(
            *(*program.argv, "--help"), cwd=tmp_path, stdout=asyncio.subprocess.DEVNULL
        )
        assert await started.wait() == 0
