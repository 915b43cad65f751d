"""The record of slices that processes shared."""

from dataclasses import replace
from pathlib import Path

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.supervision.slice_sharing import SliceSharing
from services.kit.config import Mps


async def test_slices_without_a_daemon_leave_nothing_behind(tmp_path: Path) -> None:
    """Each new slice has a new UUID, and an agent runs for months."""
    spec = SegmentSpec("s", "m", "v", 1, 1, "GPU-1", Placement("1g.5gb", 0))
    worker = WorkerSpec(
        segment_id="s", model="m", variant="v", file=Path("v.onnx"), batch_size=1,
        slice_uuid="MIG-1", costs=None,
    )  # fmt: skip
    alone = WorkerConfig(spec, worker, {}, 5.0, 40)
    several = replace(alone, spec=replace(spec, processes=2))
    for sharing, config in (
        (SliceSharing(), several),
        (SliceSharing(folder=tmp_path, mps=Mps()), alone),
    ):
        await sharing.host(config)
        await sharing.leave(config)

        assert not sharing._locks
