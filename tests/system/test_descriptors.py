"""Services that are out of file descriptors."""

import asyncio
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.kit.config.loader import load
from services.kit.net import split_address
from services.local.up.health import until_serving
from tests.support.running_suite import SHARED, Running
from tests.support.waiting import until

pytestmark = [SHARED, pytest.mark.system, pytest.mark.timeout(150)]

SPARE = 10
"""Descriptors that a service has left."""

MORE = 60
"""Connections that come nevertheless."""


def open_descriptors(pid: int) -> int:
    return max(int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()) + 1


async def test_out_of_descriptors_each_service_survives_says_so_and_serves_again(
    running: Running, config: Path
) -> None:
    """Callers that take them all do not end a service; its log names the limit and the setting."""
    deployment = load(config)
    node, place = next(iter(deployment.nodes.items()))
    addresses = {
        "carbon": deployment.carbon.dial,
        "planner": deployment.planner.dial,
        "router": deployment.router.dial,
        f"gpuagent-{node}": place.dial,
    }
    before = running.suite.processes
    with ExitStack() as held:
        for name, address in addresses.items():
            limit = open_descriptors(before[name]) + SPARE
            resource.prlimit(before[name], resource.RLIMIT_NOFILE, (limit, limit))
            for _ in range(SPARE + MORE):
                taken = held.enter_context(socket.socket())
                taken.settimeout(1.0)
                taken.connect(split_address(address))

        logs = [running.suite.logs / f"{name}.log" for name in addresses]
        await until(lambda: all("out of file desc" in log.read_text() for log in logs))

    await asyncio.gather(
        *(asyncio.wait_for(until_serving(each), 90) for each in addresses.values())
    )
    report = await running.load(2, 20)
    assert report["answered"] == report["sent"] > 0
    assert running.suite.processes == before
    for name in addresses:
        lines = (running.suite.logs / f"{name}.log").read_text().splitlines()
        lines = [line for line in lines if "fake_nvml" not in line]  # it opens files as it goes
        said = [line for line in lines if "out of file descriptors" in line]
        assert len(said) == 1, said
        assert "LimitNOFILE" in said[0]
        assert '"limit"' in said[0]
        assert sum("Too many open files" in line for line in lines) <= 10, lines
        assert not [line for line in lines if "Traceback" in line]
