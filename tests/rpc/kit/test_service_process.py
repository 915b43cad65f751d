"""A service's life as a process: it drains on a signal, and says what is wrong with its file."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from structlog.testing import capture_logs

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.kit import errors
from services.kit.config.differences import differences
from services.kit.config.loader import load
from services.kit.process.reload import Reloads
from services.kit.rpc import dial, serving
from tests.support.paths import ROOT
from tests.support.scripted_service import scripted

if TYPE_CHECKING:
    from services.kit.config import Deployment
    from tests.conftest import Deploy


async def nothing(_context: Any) -> list[str]:
    return []


@asynccontextmanager
async def process(config: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run tests/support/scripted_service.py as a process, killed if it outlives the block."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.scripted_service", str(config), cwd=ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def line(running: asyncio.subprocess.Process) -> str:
    assert running.stdout is not None
    return (await running.stdout.readline()).decode().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_process(
    deployment: Deploy, tmp_path: Path, number: signal.Signals
) -> None:
    """The call in flight gets its reply, a new one is refused, the exit status is 0."""
    deployment({})
    async with process(tmp_path / "cinquefoil.yaml") as running:
        async with dial(f"127.0.0.1:{await line(running)}") as channel:
            stub = CarbonServiceStub(channel)
            in_flight = stub.ListZones(pb.ListZonesRequest(), timeout=20)
            await asyncio.wait_for(in_flight.wait_for_connection(), 45)
            assert await line(running) == "called"

            running.send_signal(number)

            assert list((await in_flight).zones) == ["done"]
        assert await asyncio.wait_for(running.wait(), 45) == 0


async def test_a_wrong_deployment_file_ends_the_process_with_its_mistakes(
    deployment: Deploy, tmp_path: Path
) -> None:
    """Status 2, file and line on stderr, no traceback."""
    deployment({})
    path = tmp_path / "cinquefoil.yaml"
    path.write_text(f"sped: 3\n{path.read_text()}")
    async with process(path) as running:
        _, said = await running.communicate()

    assert running.returncode == 2
    assert said.decode().startswith(f"{path}: line 1: sped: unknown key; known are access, ")
    assert said.count(b"\n") == 1


async def test_a_port_in_use_is_an_error_not_a_second_server() -> None:
    async with scripted(nothing) as (_, _, server):
        with pytest.raises(errors.FailedPrecondition, match="cannot listen at"):
            async with serving(f"127.0.0.1:{server.port}", lambda _: None, (), grace_s=0):
                pass


async def test_a_hangup_has_the_file_read_again(deployment: Deploy, tmp_path: Path) -> None:
    """Settings that may change while it serves are taken over; a wrong file changes nothing."""
    deployment({})
    path = tmp_path / "cinquefoil.yaml"
    sections = yaml.safe_load(path.read_text())
    (model,) = sections["models"].values()
    async with process(path) as running:
        await line(running)
        path.write_text("version: v9")
        running.send_signal(signal.SIGHUP)
        assert running.stderr is not None
        while b"nothing changes" not in await running.stderr.readline():
            pass
        path.write_text(yaml.safe_dump({**sections, "models": {"other": model}}))
        running.send_signal(signal.SIGHUP)

        assert await line(running) == "reloaded other"
        running.terminate()
        assert await asyncio.wait_for(running.wait(), 45) == 0


async def test_settings_that_need_a_restart_are_named(deployment: Deploy, tmp_path: Path) -> None:
    deployment({})
    path = tmp_path / "cinquefoil.yaml"
    reloads = Reloads(load(path))
    reloads.serve(used=("router.*", "models.*"), live=("models.*",))
    sections = yaml.safe_load(path.read_text())
    sections["router"] = {**sections.get("router", {}), "max_attempts": 9}
    with capture_logs() as said:
        path.write_text(yaml.safe_dump({**sections, "sped": 3}))
        assert not await reloads.reload()
        path.write_text(yaml.safe_dump(sections))
        assert await reloads.reload()

    assert [(line["event"], line.get("settings")) for line in said] == [
        ("the deployment file is refused; nothing changes", None),
        ("reloaded", None),
        ("these settings need a restart", ["router.max_attempts"]),
    ]


async def test_a_replaced_config_map_is_read_without_a_signal(
    deployment: Deploy, tmp_path: Path
) -> None:
    """A kubelet swaps the link ..data; an edit in place, which may be half written, is not read."""
    deployment({})
    sections = yaml.safe_load((tmp_path / "cinquefoil.yaml").read_text())
    for revision, level in (("..1", "info"), ("..2", "debug")):
        (tmp_path / revision).mkdir()
        text = yaml.safe_dump({**sections, "log_level": level})
        (tmp_path / revision / "mounted.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "mounted.yaml").symlink_to("..data/mounted.yaml")
    taken: asyncio.Queue[str] = asyncio.Queue()

    async def apply(changed: Deployment) -> None:
        taken.put_nowait(changed.log_level)

    reloads = Reloads(load(tmp_path / "mounted.yaml"))
    started = reloads.deployment
    following = asyncio.create_task(reloads.follow_link(poll_s=0.01))
    (tmp_path / "new").symlink_to("..2")
    (tmp_path / "new").replace(tmp_path / "..data")
    # It changed before the service could take it over.
    reloads.serve(("carbon.*", "nodes.*"), (), apply)
    async with asyncio.timeout(45):
        assert await taken.get() == "debug"
    with (tmp_path / "..2" / "mounted.yaml").open("a") as file:
        file.write("log_level")
    for _ in range(5):
        await asyncio.sleep(0.01)
    following.cancel()

    assert taken.empty()
    assert differences(started, reloads.deployment) == ("log_level",)  # no relative path
