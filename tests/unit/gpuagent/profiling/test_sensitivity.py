from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.sensitivity.measure import at_both
from services.gpuagent.core import gpu_types
from services.gpuagent.profiling.core.operator_bucket import Bucket
from services.gpuagent.profiling.core.roofline import Roofline
from services.gpuagent.profiling.sensitivity.database import Database
from services.gpuagent.profiling.sensitivity.measure import (
    CPU,
    Bench,
    Measured,
    OperatorEffort,
    missing,
)
from services.gpuagent.profiling.sensitivity.study import study
from services.kit.errors import FailedPrecondition
from services.kit.operators.core.clock_sensitivity import Cost
from services.kit.operators.core.graph import Operator, Work
from services.kit.operators.onnx_reader import read
from services.kit.operators.random_inputs import Sizes
from services.local.demo import convnet

CONV = Operator(
    name="c", type="Conv", inputs=("x",), constants=("w",), outputs=("y",),
    shapes=((1, 64, 56, 56), (64, 64, 3, 3), (1, 64, 56, 56)), datatype="float32",
    work=Work(1e9, 1e6),
)  # fmt: skip
V100 = Roofline.of(gpu_types.load("v100"))
SIZES = Sizes(batch=4)

amounts = st.floats(1.0, 1e13)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load_from_string(convnet.build(16))


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


def test_the_database_knows_a_bucket_again_by_device_and_method(tmp_path: Path) -> None:
    path, bucket, cost = tmp_path / "deep/s.db", Bucket.of(CONV), Cost(1e-3, 1.5e-3)
    with Database(path) as database:
        database.keep(bucket, "v100", "measured", Cost(9.0, 9.0))
        database.keep(bucket, "v100", "measured", cost)

    with Database(path) as database:
        assert database.find(bucket, "v100", "measured") == cost
        assert database.find(bucket, "v100", "model") is None
        assert database.find(bucket, "t4", "measured") is None


def test_a_file_that_is_no_database_of_ours_is_left_alone(tmp_path: Path) -> None:
    text, newer = tmp_path / "text.db", tmp_path / "newer.db"
    text.write_text("somebody's notes, much longer than a header\n" * 10)
    sqlite3.connect(newer).executescript("PRAGMA user_version = 99;").connection.close()

    for path in (text, newer):
        with pytest.raises(FailedPrecondition, match="no sensitivity database"):
            Database(path)
    assert text.read_text().startswith("somebody's notes")


def test_a_study_covers_all_operators_and_its_shares_are_the_whole(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    graph = read(model, "conv", SIZES)
    with Database(tmp_path / "s.db") as database:
        found = study(graph, V100, database, reuse=False)
        kept = database.find(Bucket.of(graph.operators[0]), "v100", "model")

    kinds = found.kinds()
    assert kept == found.costs[0]
    assert sum(kind.count for kind in kinds) == len(graph.operators)
    assert sum(kind.share for kind in kinds) == pytest.approx(1.0)
    assert [kind.share for kind in kinds] == sorted((k.share for k in kinds), reverse=True)
    assert 0.0 <= found.insensitive_share <= 1.0


async def test_operators_are_timed_alone_at_both_clocks_and_then_known(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    """Here the processor computes, whose clock nobody holds: this shows the order of calls."""
    graph, held = read(model, "conv", SIZES), list[int]()
    bench = Bench(model, graph, SIZES, provider=CPU)
    wanted = missing(graph, lambda _: None)

    async def hold(clock_mhz: int) -> None:
        held.append(clock_mhz)

    effort = OperatorEffort(runs=30, most_s=0.02, settle_s=0.0)
    costs = await at_both(bench, wanted, hold, (1380, 690), effort)

    assert held == [1380, 690]
    largest = max(graph.operators, key=lambda each: each.work.flops)
    divided = next(each for each in graph.operators if each.type == "Div")
    assert costs[Bucket.of(largest)].latency_s > costs[Bucket.of(divided)].latency_s
    with Database(tmp_path / "s.db") as database:
        measured = study(graph, Measured("here", costs), database, reuse=True)
        again = study(graph, Measured("here", {}), database, reuse=True)
        assert not missing(graph, lambda bucket: database.find(bucket, "here", "measured"))
    assert again.costs == measured.costs
