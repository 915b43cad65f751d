"""Power limits of simulated GPUs, set by the agent and given back, through unmodified pynvml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from services.gpuagent.devices.board_limits import BoardLimits
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.errors import PermissionDenied
from tests.support.gpuagent.nvml_calls import gpu

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Work


def now_mw() -> int:
    return int(pynvml.nvmlDeviceGetPowerManagementLimit(gpu()))


def test_limits_are_within_the_boards_constraints(start: Start, work: Work) -> None:
    """A limit outside of them is refused, and one within lowers the clock as far as it must."""
    start(activity=lambda _: work)
    least, most = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu())
    assert now_mw() == most == pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu())
    for wrong in (least - 1, most + 1):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), wrong)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), least)
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu()) == least
    assert work.ratios[-1] < 1
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), most)
    assert work.ratios[-1] == 1


async def test_the_next_agent_gives_back_what_one_that_crashed_had_set(
    start: Start, tmp_path: Path
) -> None:
    """The limit from before is on disk before the driver is called."""
    start()
    uuid, before = pynvml.nvmlDeviceGetUUID(gpu()), now_mw()
    async with DeviceThread(NvmlGpus()) as device:
        limits = BoardLimits(device, tmp_path / "limits.json", allowed=True)
        assert await limits.set(uuid, 1.0) == (await limits.read(uuid)).least_w
        assert await limits.set(uuid, 250.0) == 250.0
        assert now_mw() == 250_000
        again = BoardLimits(device, tmp_path / "limits.json", allowed=True)
        await again.restore()
        assert now_mw() == before


async def test_limits_that_are_not_allowed_are_left_alone(start: Start, tmp_path: Path) -> None:
    """Without `allow_power_limits` nothing is read or set."""
    start()
    async with DeviceThread(NvmlGpus()) as device:
        limits = BoardLimits(device, tmp_path / "limits.json", allowed=False)
        with pytest.raises(PermissionDenied, match="allow_power_limits"):
            await limits.set(pynvml.nvmlDeviceGetUUID(gpu()), 250.0)
        assert not (tmp_path / "limits.json").exists()
