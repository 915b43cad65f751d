"""SIGHUP of `cinquefoil up`: all services read the file again."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from services.kit.net import free_port
from tests.support.paths import ROOT
from tests.support.worker.worker_process import save_model

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]
SERVICES = ("carbon", "console", "gpuagent-node-0", "planner", "router")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that no test has to train."""
    return save_model(tmp_path_factory.mktemp("model") / "m.onnx")


def _deployment(folder: Path, model: Path) -> Path:
    """Write one simulated GPU and one model that no test has to train."""
    listen = [f"127.0.0.1:{free_port()}" for _ in range(5)]
    zone = {"source": {"kind": "static", "intensity_gco2e_per_kwh": 100.0}}
    profile = {"kind": "analytic", "gmacs_per_item": 2.0}
    variant = {"file": str(model), "accuracy": 0.9, "profile": profile}
    node = {"zone": "Z", "simulated": ["t4"], "state_dir": str(folder / "state")}
    document = {
        "version": "v1",
        "carbon": {"listen": listen[0], "zones": {"Z": zone}},
        "planner": {"listen": listen[1], "database": str(folder / "planner.sqlite3")},
        "router": {"listen": listen[2]},
        "console": {"listen": listen[4]},
        "nodes": {"node-0": {"listen": listen[3], **node}},
        "models": {"m": {"slo": {"latency_s": 1.0}, "demand_rps": 1, "variants": {"v": variant}}},
    }
    file = folder / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


async def _until(true: Callable[[], bool], wait_s: float = 60.0) -> None:
    """Wait for other processes, which can set no event of this one."""
    for _ in range(round(wait_s / 0.05)):
        if true():
            return
        await asyncio.sleep(0.05)
    pytest.fail("it never came true")


@asynccontextmanager
async def _up(config: Path, logs: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    """Run `up` without a terminal; give its process and its output once it serves."""
    output = logs.parent / "output"
    with output.open("w") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "up"),
            *("--config", str(config), "--logs", str(logs)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=asyncio.subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        await _until(lambda: "Serving" in output.read_text() or process.returncode is not None)
        assert process.returncode is None, output.read_text()
        yield process, output
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _reloads(logs: Path) -> dict[str, int]:
    """Return the reloads that each service has logged."""
    return {name: (logs / f"{name}.log").read_text().count("reloaded") for name in SERVICES}


async def test_a_hangup_reloads_every_service_and_ends_none(tmp_path: Path, model: Path) -> None:
    """Twice, and a file with a mistake between, which changes nothing.

    Without a terminal, as an init system, a container, or `nohup` starts it.
    """
    config, logs = _deployment(tmp_path, model), tmp_path / "logs"
    good = config.read_text()
    async with _up(config, logs) as (process, output):
        services = {each.pid for each in psutil.Process(process.pid).children()}
        for count in (1, 2):
            config.write_text(f"{good}log_level: debug\n" if count == 1 else good)
            process.send_signal(signal.SIGHUP)
            await _until(lambda count=count: set(_reloads(logs).values()) == {count})  # type: ignore[misc]
            config.write_text("nonsense: 1\n")
            process.send_signal(signal.SIGHUP)
            await _until(lambda: "refused" in (logs / "planner.log").read_text())
        assert {each.pid for each in psutil.Process(process.pid).children()} == services
        assert process.returncode is None
        assert "Reloading" in output.read_text()
