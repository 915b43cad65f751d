"""The device port on a real GPU. It only reads: no test here changes the GPU in any way.

Also runs by itself where only pytest and nvidia-ml-py are installed:
`PYTHONPATH=. python tests/gpu/test_real_nvml.py` in the repository's root.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pynvml
import pytest

from services.gpuagent import gpu_table
from services.gpuagent.device import GpuInfo, NvmlGpus
from services.kit.errors import FailedPrecondition, NotFound, PermissionDenied
from services.kit.mig import WHOLE, Placement

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpus() -> Iterator[NvmlGpus]:
    port = NvmlGpus()
    try:
        port.__enter__()
    except FailedPrecondition as error:
        pytest.skip(f"no NVIDIA driver here: {error}")
    try:
        yield port
    finally:
        port.__exit__()


@pytest.fixture
def listed(gpus: NvmlGpus) -> tuple[GpuInfo, ...]:
    try:
        found = gpus.list()
    except PermissionDenied as error:
        pytest.skip(f"this process may not read MIG instances: {error}")
    if not found:
        pytest.skip("no NVIDIA GPU here")
    return found


def test_every_gpu_is_described(listed: tuple[GpuInfo, ...]) -> None:
    for gpu in listed:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.model.sm_count > 0
        assert gpu.model.memory_bytes > 2**30
        assert 0 < gpu.model.idle_power_w < gpu.model.max_power_w
        assert gpu.model.clocks_mhz == tuple(sorted(gpu.model.clocks_mhz, reverse=True))
        assert gpu.clock_mhz <= gpu.model.max_clock_mhz


def test_slices_lie_within_the_geometry(listed: tuple[GpuInfo, ...]) -> None:
    for gpu in listed:
        assert gpu.model.geometry.problem(placement for placement, _ in gpu.slices) == ""
        if not gpu.mig_enabled:
            assert gpu.slices == ((Placement(WHOLE, 0), gpu.uuid),)


def test_a_cut_gpu_has_the_geometry_of_its_table(listed: tuple[GpuInfo, ...]) -> None:
    """The tables are right, for the boards at hand."""
    known = [
        (gpu, table)
        for gpu in listed
        if (table := gpu_table.by_product_name(gpu.model.product_name)) is not None
    ]
    if not known:
        pytest.skip("no table for the GPUs here")
    for gpu, table in known:
        assert gpu.model.sm_count == table.sm_count
        if gpu.mig_enabled:
            starts = {kind.name: kind.starts for kind in table.geometry.kinds}
            assert all(starts[kind.name] == kind.starts for kind in gpu.model.geometry.kinds)


def test_the_meter_counts_what_the_power_says(gpus: NvmlGpus, listed: tuple[GpuInfo, ...]) -> None:
    """Energy grows; over a second, within half and twice the power read (zeus#181: 40 % off)."""
    for gpu in listed:
        before, began_s = gpus.meter(gpu.uuid), time.monotonic()
        time.sleep(1)
        after, took_s = gpus.meter(gpu.uuid), time.monotonic() - began_s
        assert after.method in {"counter", "integrated"}
        mean_w = (after.energy_j - before.energy_j) / took_s
        assert 0.5 * min(before.power_w, after.power_w) < mean_w
        assert mean_w < 2 * max(before.power_w, after.power_w)


def test_a_gpu_that_is_not_there_is_not_found(gpus: NvmlGpus) -> None:
    with pytest.raises(NotFound):
        gpus.meter("GPU-00000000-0000-0000-0000-000000000000")


def test_nvml_itself_agrees_on_the_count(listed: tuple[GpuInfo, ...]) -> None:
    assert len(listed) == pynvml.nvmlDeviceGetCount()


if __name__ == "__main__":
    options = ["-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider", "-q", "-rs"]
    sys.exit(pytest.main([*options, "-W", "ignore::pytest.PytestUnknownMarkWarning", __file__]))
