from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.profiling.core.operator_bucket import Bucket
from services.gpuagent.profiling.core.roofline import Roofline
from services.kit.hardware import gpu_types
from services.kit.operators.core.graph import Operator, Work

CONV = Operator(
    name="c", type="Conv", inputs=("x",), constants=("w",), outputs=("y",),
    shapes=((1, 64, 56, 56), (64, 64, 3, 3), (1, 64, 56, 56)), datatype="float32",
    work=Work(1e9, 1e6),
)  # fmt: skip
V100 = Roofline.of(gpu_types.load("v100"))

amounts = st.floats(1.0, 1e13)


@pytest.mark.parametrize("name", gpu_types.names())
def test_a_data_sheet_promises_no_more_than_its_cores_can_do(name: str) -> None:
    """Each core multiplies and adds once a cycle; the P4's sheet has a clock below its highest."""
    gpu = gpu_types.load(name)
    cores_tflops = 2 * gpu.sm_count * gpu.cores_per_sm * gpu.max_clock_mhz * 1e-6

    assert 0.65 * cores_tflops < gpu.peak.fp32_tflops < 1.05 * cores_tflops
    assert gpu.peak.fp32_tflops <= gpu.peak.tf32_tflops
    assert gpu.peak.fp16_tflops < gpu.peak.int8_tops or name == "v100"


@given(amounts, amounts)
def test_a_score_is_between_nothing_and_proportion(flops: float, moved_bytes: float) -> None:
    cost = V100.cost(replace(CONV, work=Work(flops, moved_bytes)))

    assert 0.0 <= cost.score <= 2.0
    assert cost.half_clock_s <= 2 * cost.latency_s


@given(st.floats(1e6, 1e12), st.floats(1e6, 1e12), st.floats(1.0, 100.0))
def test_more_arithmetic_per_byte_never_lowers_the_score(
    flops: float, moved_bytes: float, more: float
) -> None:
    """Without launches, as these hide either."""
    roofline = replace(V100, launch_s=0.0)
    less = roofline.cost(replace(CONV, work=Work(flops, moved_bytes)))
    denser = roofline.cost(replace(CONV, work=Work(flops * more, moved_bytes)))

    assert denser.score >= less.score - 1e-9


def test_the_clock_slows_arithmetic_in_proportion_and_memory_not_at_all() -> None:
    busy = V100.cost(replace(CONV, work=Work(1e13, 1.0)))
    waiting = V100.cost(replace(CONV, work=Work(1.0, 1e10)))
    launching = V100.cost(replace(CONV, work=Work(1.0, 1.0)))

    assert busy.score == pytest.approx(2.0, rel=1e-3)
    assert (waiting.score, launching.score) == (0.0, 0.0)


def test_tensor_cores_compute_matrix_products_and_nothing_else() -> None:
    assert V100.peak_flops(replace(CONV, datatype="float16")) == 112e12
    assert V100.peak_flops(replace(CONV, datatype="uint8")) == 56e12
    assert V100.peak_flops(replace(CONV, type="Relu", datatype="float16")) == 14e12


def test_like_shapes_share_a_bucket() -> None:
    alike = replace(CONV, shapes=((1, 60, 56, 56), (64, 60, 3, 3), (1, 64, 56, 56)))

    assert Bucket.of(CONV) == Bucket("Conv", "float32", "1x64x64x64,64x64x3x3:1x64x64x64")
    assert Bucket.of(alike) == Bucket.of(CONV)
    assert Bucket.of(replace(CONV, datatype="float16")) != Bucket.of(CONV)
