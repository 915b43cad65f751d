"""Faults that another process orders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.devices.fake_nvml.library import FakeNvml
from tests.support.gpuagent.nvml_calls import (
    A100,
    create_a100,
    gpu,
    mig_gpu,
    read_layout,
)

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Work


def test_a_mishap_ordered_by_another_process_reaches_the_owner(
    start: Start, work: Work, tmp_path: Path
) -> None:
    """A chaos test's fault in a running agent; the load gets the clock that is unlocked."""
    outsider = FakeNvml("node", ["a100-40gb"], state_dir=tmp_path)
    (uuid,) = outsider.gpu_uuids
    start(state_dir=tmp_path, activity=lambda _: work)
    create_a100(mig_gpu(), "4g.20gb", 0)
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 705, 705)
    handle = gpu()

    outsider.lose(uuid)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetPowerUsage(handle)
    outsider.reset(uuid)
    assert read_layout(handle, A100) == ()
    assert work.ratios[-2:] == [0.5, 1.0]
    create_a100(handle, "3g.20gb", 4)

    start(state_dir=tmp_path)
    assert read_layout(gpu(), A100) == (Placement("3g.20gb", 4),)
