"""The power cap of a node whose driver refuses a query at the start."""

from pathlib import Path
from typing import Final

import pynvml

from services.gpuagent.devices.board_limits import BoardLimits
from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.power_cap.loop import PowerCap
from tests.support.gpuagent.idle_node import idle_node
from tests.support.gpuagent.nvml_calls import gpu
from tests.support.gpuagent.nvml_faults import FaultyNvml, InjectedFault

CONSTRAINTS: Final = "nvmlDeviceGetPowerManagementLimitConstraints"


async def test_a_board_that_refuses_its_power_limits_at_the_start_is_limited_once_it_answers(
    tmp_path: Path, library: FaultyNvml
) -> None:
    """The refusal is named, the cap says that nothing can be lowered, and the next look lowers."""
    library.inject(InjectedFault(Code.UNKNOWN, frozenset({CONSTRAINTS})))
    async with idle_node(tmp_path, library) as (node, _):
        uuid = library.gpu_uuids[0]
        cap = PowerCap(
            node=node,
            gpus=(await node.device.call(lambda d: d.list()))[:1],
            power_w=lambda: {uuid: 300.0},
            boards=BoardLimits(node.device, tmp_path / "limits.json", allowed=True),
        )
        before_mw = pynvml.nvmlDeviceGetPowerManagementLimit(gpu())
        await cap.begin()
        cap.set_share(200.0, "sites.hall.power_budget_w")
        await cap.look()
        assert CONSTRAINTS in (await node.device.call(lambda d: d.refused()))[uuid]
        assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu()) == before_mw
        (condition,) = cap.conditions()
        assert "nothing more can be lowered" in condition.sentence

        await cap.learn()
        await cap.look()
        assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu()) < 200_000 < before_mw
