"""Clocks that the loop lowers: plans prevail, and a driver that refuses changes nothing."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.gpuagent.v1.records import LockClock
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.hardware import hardware_of
from services.gpuagent.node_place import NodePlace
from services.kit.config import Node
from services.kit.errors import InvalidArgument
from services.kit.state_file import read_parsed


@dataclass
class Gpu:
    """A simulated V100 and what holds its clock."""

    device: DeviceThread
    clocks: ClockLocks
    uuid: str
    path: Path

    async def clock_mhz(self) -> int:
        return (await self.device.call(lambda d: d.list()))[0].clock_mhz

    def written(self) -> dict[str, Any]:
        return read_parsed(self.path, dict, version=1) or {}


@asynccontextmanager
async def gpu(folder: Path) -> AsyncIterator[Gpu]:
    settings = Node(zone="Z", simulated=("v100",))
    async with hardware_of(NodePlace("node", settings, folder)) as hardware:
        device, (found,), path = hardware.device, hardware.gpus, folder / "clocks.json"
        yield Gpu(device, ClockLocks(device, path, allowed=True), found.uuid, path)


async def test_a_clock_is_lowered_and_given_back_to_what_the_plan_says(tmp_path: Path) -> None:
    async with gpu(tmp_path) as node:
        await node.clocks.hold(LockClock(node.uuid, 1200))
        await node.clocks.lower(node.uuid, 900, ceiling_mhz=1200)
        lowered_mhz, written = await node.clock_mhz(), node.written()
        await node.clocks.lower(node.uuid, 0, ceiling_mhz=1200)

        assert (lowered_mhz, await node.clock_mhz()) == (900, 1200)
        assert (written["held_mhz"], written["lowered"]) == ({node.uuid: 1200}, [node.uuid])
        assert node.written()["lowered"] == []
        assert node.clocks.state.held_mhz == {node.uuid: 1200}


async def test_a_loop_that_does_not_know_the_newest_plan_changes_nothing(tmp_path: Path) -> None:
    async with gpu(tmp_path) as node:
        await node.clocks.hold(LockClock(node.uuid, 1200))
        await node.clocks.lower(node.uuid, 900, ceiling_mhz=0)

        assert await node.clock_mhz() == 1200


async def test_a_driver_that_refuses_leaves_clock_and_file_as_they_were(tmp_path: Path) -> None:
    async with gpu(tmp_path) as node:
        await node.clocks.lower(node.uuid, 900, ceiling_mhz=0)
        with pytest.raises(InvalidArgument):
            await node.clocks.lower(node.uuid, 5000, ceiling_mhz=0)
        kept_mhz = await node.clock_mhz()
        await node.clocks.lower(node.uuid, 0, ceiling_mhz=0)
        with pytest.raises(InvalidArgument):
            await node.clocks.lower(node.uuid, 5000, ceiling_mhz=0)

        assert (kept_mhz, await node.clock_mhz()) == (900, 1380)
        assert node.written()["lowered"] == []


async def test_after_the_release_nothing_is_lowered_any_more(tmp_path: Path) -> None:
    """The loop may still be at work while the agent ends."""
    async with gpu(tmp_path) as node:
        await node.clocks.lower(node.uuid, 900, ceiling_mhz=0)
        await node.clocks.release()
        await node.clocks.lower(node.uuid, 900, ceiling_mhz=0)

        assert await node.clock_mhz() == 1380
        assert node.written() == {"version": 1, "held_mhz": {}, "lowered": []}


async def test_a_file_of_before_the_loop_is_read_too(tmp_path: Path) -> None:
    async with gpu(tmp_path) as node:
        node.path.write_text(json.dumps({"version": 1, "held_mhz": {node.uuid: 990}}))
        await node.clocks.restore()

        assert await node.clock_mhz() == 990
