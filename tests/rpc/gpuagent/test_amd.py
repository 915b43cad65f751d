"""An agent of simulated GPUs of AMD: inventory, a segment, its energy and its clock."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from services.gpuagent.devices.fake_amdsmi.library import gpu_uuid
from tests.support.gpuagent.agent_process import agent_process
from tests.support.gpuagent.agent_service import (
    NODE,
    deployment,
    placement,
    planning,
    segment_spec,
)
from tests.support.worker.worker_process import infer_request, routed

pytestmark = pytest.mark.skipif(find_spec("amdsmi") is None, reason="amdsmi is not installed")

GPU = gpu_uuid(NODE, 0, "mi300x-192gb")


async def test_a_whole_gpu_of_amd_serves_is_metered_and_clocked(
    tmp_path: Path, model: Path
) -> None:
    """The agent is the same as on NVIDIA's; only the port below it is another."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        node = settings.nodes[NODE].model_copy(update={"simulated": ("mi300x-192gb",)})
        settings = settings.model_copy(update={"nodes": {NODE: node}})
        async with agent_process(settings):
            await planner.until(lambda: len(planner.node.gpus) == 1)
            (gpu,) = planner.node.gpus
            whole = segment_spec("s", gpu_uuid=GPU, placement=placement("whole", 0))
            assert (await planner.start(whole)).ok
            assert (await planner.lock_clock(1050, GPU)).ok
            found = planner.segment("s")
            assert found is not None
            async with routed(found.endpoints[0]) as router:
                answer = await router.infer(infer_request([[0, 0]]))
            await planner.until(
                lambda: sum(each.requests for each in planner.energy[GPU].segments) == 1
            )
            await planner.until(lambda: planner.node.gpus[0].locked_clock_mhz == 1050)
            account = planner.energy[GPU]

    assert (gpu.uuid, gpu.type.name, gpu.mig_enabled) == (GPU, "mi300x-192gb", False)
    assert answer.status == ""
    assert account.idle_j > 0
    (segment,) = account.segments
    assert segment.active_j > 0
    assert answer.receipt.energy_j > 0
