"""Real GPUs, read only: no test here changes one in any way, and a fixture sees to it.

Also runs by itself where only pytest and what `make gpu-report` needs are installed:
`PYTHONPATH=.:protos python tests/gpu/test_real_nvml.py` in the repository's root.
"""

import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml
import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.devices.nvml import reading
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.errors import FailedPrecondition, NotFound, PermissionDenied
from services.kit.hardware.boards import table_of
from services.kit.hardware.gpu_types import GpuTable
from services.kit.mig import WHOLE

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
def handles(gpus: NvmlGpus) -> Iterator[list[Any]]:
    """The GPUs; what can be set on them is the same before and after."""
    found = [pynvml.nvmlDeviceGetHandleByUUID(uuid.encode()) for uuid in sorted(gpus.present())]
    if not found:
        pytest.skip("no NVIDIA GPU here")
    before = [_settings(handle) for handle in found]
    yield found
    assert [_settings(handle) for handle in found] == before


def _settings(handle: Any) -> tuple[object, ...]:
    calls = (
        pynvml.nvmlDeviceGetMigMode,
        pynvml.nvmlDeviceGetPowerManagementLimit,
        pynvml.nvmlDeviceGetComputeMode,
        pynvml.nvmlDeviceGetPersistenceMode,
        lambda device: [pynvml.nvmlDeviceGetUUID(each) for _, each in reading.mig_devices(device)],
    )
    return tuple(_or_none(call, handle) for call in calls)


def _or_none(call: Any, handle: Any) -> object:
    try:
        return call(handle)
    except (
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NoPermission,
        pynvml.NVMLError_NotSupported,
    ):
        return None


@pytest.fixture
def listed(gpus: NvmlGpus, handles: list[Any]) -> tuple[GpuInfo, ...]:
    try:
        return gpus.list()
    except PermissionDenied as error:
        pytest.skip(f"this process may not read MIG instances: {error}")


@pytest.fixture
def known(handles: list[Any]) -> list[tuple[Any, GpuTable]]:
    """The GPUs of which we have a table, with it."""
    tables = [(handle, table_of(pynvml.nvmlDeviceGetName(handle))) for handle in handles]
    found = [(handle, table) for handle, table in tables if table is not None]
    if not found:
        pytest.skip("no table for the GPUs here")
    return found


# ---- the device port ---------------------------------------------------------------------------


def test_every_gpu_is_described(listed: tuple[GpuInfo, ...]) -> None:
    for gpu in listed:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.model.sm_count > 0
        assert gpu.model.memory_bytes > 2**30
        assert 0 < gpu.model.context_power_w < gpu.model.max_power_w
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
        (gpu, table) for gpu in listed if (table := table_of(gpu.model.product_name)) is not None
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
        powers_w = [power_w for power_w in (before.power_w, after.power_w) if power_w is not None]
        if powers_w:
            assert 0.5 * min(powers_w) < mean_w < 2 * max(powers_w)


def test_a_gpu_that_is_not_there_is_not_found(gpus: NvmlGpus) -> None:
    with pytest.raises(NotFound):
        gpus.meter("GPU-00000000-0000-0000-0000-000000000000")


def test_nvml_itself_agrees_on_the_count(listed: tuple[GpuInfo, ...]) -> None:
    assert len(listed) == pynvml.nvmlDeviceGetCount()


# ---- what the simulator claims of the hardware -------------------------------------------------


def test_profiles_and_placements_are_the_tables(known: list[tuple[Any, GpuTable]]) -> None:
    """Ids, counts, SMs and starts, also while MIG mode is off; memory to a quarter of a GiB."""
    capable = [(handle, table) for handle, table in known if table.mig_capable]
    if not capable:
        pytest.skip("no GPU with MIG here")
    for handle, table in capable:
        try:
            found = {
                info.name.removeprefix("MIG "): (info, reading.possible_placements(handle, info.id))
                for info in reading.profile_infos(handle)
            }
        except pynvml.NVMLError_NoPermission:
            pytest.skip("this process may not read MIG placements")
        for kind in table.geometry.kinds:
            real, placements = found[kind.name]
            assert (real.id, real.instanceCount) == (kind.gpu_instance_profile_id, kind.max_count)
            assert placements == (kind.starts, kind.memory_slices)
            assert real.multiprocessorCount == kind.sm_count
            assert real.memorySizeMB == pytest.approx(kind.memory_bytes / 2**20, abs=256)


def test_supported_clocks_are_the_tables(known: list[tuple[Any, GpuTable]]) -> None:
    for handle, table in known:
        memory_mhz = pynvml.nvmlDeviceGetSupportedMemoryClocks(handle)
        clocks_mhz = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, max(memory_mhz))

        assert tuple(sorted(clocks_mhz, reverse=True)) == table.clocks_mhz
        assert max(memory_mhz) == table.memory_clock_mhz


def test_power_limits_are_the_tables(known: list[tuple[Any, GpuTable]]) -> None:
    for handle, table in known:
        least_mw, most_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)

        assert (least_mw / 1000, most_mw / 1000) == (table.min_power_limit_w, table.max_power_w)


def test_power_is_averaged_where_nvml_h_says_so(known: list[tuple[Any, GpuTable]]) -> None:
    fields = [pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT]
    for handle, table in known:
        average, instant = pynvml.nvmlDeviceGetFieldValues(handle, fields)

        assert instant.nvmlReturn == pynvml.NVML_SUCCESS
        assert instant.value.uiVal > 0
        assert (average.nvmlReturn == pynvml.NVML_SUCCESS) == table.averages_power


def test_the_energy_counter_only_grows_in_ticks_of_at_most_100_ms(handles: list[Any]) -> None:
    for handle in handles:
        seen: list[tuple[float, int]] = []  # when the counter moved, and to what, mJ
        until_s = time.monotonic() + 2
        while (now_s := time.monotonic()) < until_s:
            energy_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            if not seen or energy_mj != seen[-1][1]:
                seen.append((now_s, energy_mj))
            time.sleep(0.001)

        assert all(later[1] > earlier[1] for earlier, later in pairwise(seen))
        ticks_s = sorted(later[0] - earlier[0] for earlier, later in pairwise(seen))
        assert ticks_s[len(ticks_s) // 2] < 0.15


# ---- an inference with the counter around it ---------------------------------------------------


def test_an_inference_costs_energy_that_the_counter_shows(
    gpus: NvmlGpus,
    handles: list[Any],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """The method of the profiler and of receipts, on the real thing."""
    pytest.importorskip("onnxruntime")
    numpy = pytest.importorskip("numpy")
    from services.gpuagent.worker.onnx_engine import Engine  # noqa: PLC0415 - needs onnxruntime

    try:
        engine = Engine(_matrix_product(tmp_path / "product.onnx"), "CUDAExecutionProvider")
    except RuntimeError as error:
        pytest.skip(f"ONNX Runtime has no CUDA here: {error}")
    uuid = pynvml.nvmlDeviceGetUUID(handles[0])  # CUDA's default: the first
    x = numpy.ones((_ROWS, _WIDTH), dtype=numpy.float32)
    engine.run({"x": x})  # the first run allocates
    before, began_s, items = gpus.meter(uuid), time.monotonic(), 0
    while time.monotonic() - began_s < 2:
        (y,) = engine.run({"x": x})
        items += _ROWS
    after, took_s = gpus.meter(uuid), time.monotonic() - began_s
    mean_w = (after.energy_j - before.energy_j) / took_s

    assert y[0, 0] == pytest.approx(_WIDTH)
    assert after.method == "counter"
    limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handles[0]) / 1000
    assert 0.8 * (before.power_w or 0) < mean_w < 1.1 * limit_w
    record_property("mean_power_w", mean_w)
    record_property("energy_j_per_item", (after.energy_j - before.energy_j) / items)


_ROWS, _WIDTH = 1024, 2048


def _matrix_product(path: Path) -> Path:
    """Write a model that multiplies by a matrix of ones."""
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    ones = helper.make_tensor("w", floats, [_WIDTH, _WIDTH], [1.0] * _WIDTH**2)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", floats, ["n", _WIDTH])],
        [helper.make_tensor_value_info("y", floats, ["n", _WIDTH])],
        [ones],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)
    return path


if __name__ == "__main__":
    options = [
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rs",
    ]
    sys.exit(pytest.main([*options, "-W", "ignore::pytest.PytestUnknownMarkWarning", __file__]))
