"""Operators' sensitivity to the clock: measured in a session, and kept in a database."""

import sqlite3
from pathlib import Path

import onnx
import pytest

from services.cli.sensitivity.measure import at_both
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
from services.kit.hardware import gpu_types
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


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load_from_string(convnet.build(16))


def test_the_database_knows_a_bucket_again_by_device_and_method(tmp_path: Path) -> None:
    path, bucket, cost = tmp_path / "deep/s.db", Bucket.of(CONV), Cost(1e-3, 1.5e-3)
    with Database(path) as database:
        database.keep(bucket, "v100", "measured", Cost(9.0, 9.0))
        database.keep(bucket, "v100", "measured", cost)

    with Database(path) as database:
        assert database.find(bucket, "v100", "measured") == cost
        assert database.find(bucket, "v100", "model") is None
        assert database.find(bucket, "t4", "measured") is None


def test_a_file_that_is_not_our_database_is_left_alone(tmp_path: Path) -> None:
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
    """On the processor here, whose clock is not held: this shows the order of calls."""
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
