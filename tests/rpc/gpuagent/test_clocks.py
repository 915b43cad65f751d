"""Clocks that plans hold: verified, bounded, given back at the end, known again after a crash."""

from pathlib import Path

import pytest

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.gpuagent.v1.records import LockClock
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.hardware import hardware_of
from services.gpuagent.node_place import NodePlace
from services.kit.config import Node
from services.kit.errors import PermissionDenied
from tests.support.gpuagent.agent_process import agent_process
from tests.support.gpuagent.agent_service import (
    GPU,
    WHOLE_GPU,
    Agent,
    Planner,
    deployment,
    planning,
)


def _gpu(node: inventory_pb2.Node, uuid: str = GPU) -> inventory_pb2.Gpu:
    return next(gpu for gpu in node.gpus if gpu.uuid == uuid)


async def test_a_clock_is_held_on_its_gpu_alone_until_it_is_given_back(
    node: tuple[Planner, Agent],
) -> None:
    planner, running = node
    full_mhz = _gpu(await running.node()).clock_mhz

    assert (await planner.lock_clock(990)).ok
    assert (await planner.lock_clock(990)).ok
    held = await running.node()
    assert (_gpu(held).locked_clock_mhz, _gpu(held).clock_mhz) == (990, 990)
    assert _gpu(held, WHOLE_GPU).locked_clock_mhz == 0

    assert (await planner.lock_clock(0)).ok
    free = _gpu(await running.node())
    assert (free.locked_clock_mhz, free.clock_mhz, free.clock_lockable) == (0, full_mhz, True)


async def test_a_clock_that_cannot_be_changes_nothing(node: tuple[Planner, Agent]) -> None:
    planner, running = node
    assert (await planner.lock_clock(990)).ok

    too_high = await planner.lock_clock(5000)
    unknown = await planner.lock_clock(990, gpu="GPU-none")

    assert (too_high.ok, too_high.status) == (False, "INVALID_ARGUMENT")
    assert "clock_mhz must be 210..1410, got 5000" in too_high.message
    assert not unknown.ok
    assert _gpu(await running.node()).locked_clock_mhz == 990


async def test_a_killed_agent_holds_its_clocks_again_and_gives_them_back_when_it_ends(
    tmp_path: Path, model: Path
) -> None:
    """SIGKILL: the successor holds what its predecessor held; SIGTERM: nothing stays held."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            assert (await planner.lock_clock(990)).ok
            first.kill()
            await first.wait()
        planner.node.Clear()
        async with agent_process(settings):
            await planner.until(lambda: len(planner.node.gpus) > 0)
            assert _gpu(planner.node).locked_clock_mhz == 990
        planner.node.Clear()
        async with agent_process(settings):
            await planner.until(lambda: len(planner.node.gpus) > 0)
            assert _gpu(planner.node).locked_clock_mhz == 0


async def test_an_agent_without_the_right_holds_no_clock(tmp_path: Path) -> None:
    """`allow_clocks` is off unless the operator says so; the hardware is not even queried."""
    settings = Node(zone="Z", simulated=("a100-40gb",))
    async with hardware_of(NodePlace("node", settings, tmp_path)) as hardware:
        device, (gpu,) = hardware.device, hardware.gpus
        clocks = ClockLocks(device, tmp_path / "clocks.json", allowed=False)

        with pytest.raises(PermissionDenied, match="allow_clocks"):
            await clocks.hold(LockClock(gpu.uuid, 990))

        assert not clocks.state.may_lock
        assert not clocks.state.held_mhz
        assert (await device.call(lambda d: d.list()))[0].clock_mhz == gpu.clock_mhz
