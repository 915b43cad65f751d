"""The router's benchmark: what its figures are made of."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.router import messages
from benchmarks.router.generators import Wrong, load
from benchmarks.router.messages import SHAPES
from benchmarks.router.paths import PATHS
from benchmarks.router.report import Found, report
from benchmarks.router.samples import CASES, Case, Cell, Sample, Speeds
from benchmarks.router.soak import growth
from inference import grpc_service_pb2 as pb

SINGLE, MANY = Case("small", 1), Case("small", 64)


def rows(tmp_path: Path, *of: tuple[int, int, int]) -> Path:
    file = tmp_path / "load.tsv"
    file.write_text("".join("\t".join(map(str, each)) + "\n" for each in of))
    return file


def sample(*, rate_rps: float = 1.0, p50_ms: float = 1.0) -> Sample:
    return Sample(rate_rps, p50_ms, p50_ms, 1.0)


def test_the_first_fifth_of_a_load_is_warm_up(tmp_path: Path) -> None:
    """Answers of the first fifth count neither as latency nor as throughput; CPU time does."""
    file = rows(tmp_path, (0, 200, 9000), (199_999, 200, 9000), (200_000, 200, 1000))

    found = load(file, 1.0)

    assert found.latencies_ms.tolist() == [1.0]
    assert found.rate_rps == pytest.approx(1 / 0.8)
    assert found.total == 3


@pytest.mark.parametrize("status", [503, 0], ids=str)
def test_a_load_with_one_failure_is_no_figure(tmp_path: Path, status: int) -> None:
    with pytest.raises(Wrong, match="not 200"):
        load(rows(tmp_path, (0, 200, 1), (1, status, 1)), 1.0)


def test_a_load_without_answers_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="nothing"):
        load(tmp_path / "absent.tsv", 1.0)


def test_the_requests_have_the_sizes_that_the_targets_name() -> None:
    sizes = {size: len(messages.request(size)) for size in SHAPES}

    assert sizes == {"small": 284, "image": 602_145}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": "2"}, "id '2' for request '1'"),
        ({"raw_output_contents": [bytes(40)]}, "y is [0.0"),
        ({"raw_output_contents": [np.arange(9, dtype=np.float32).tobytes()]}, "y is"),
        ({}, "no carbon_gco2e, energy_j"),
    ],
    ids=["another request's", "other values", "too few", "no receipt"],
)
def test_a_wrong_answer_is_distinguished_from_the_right_one(
    change: dict[str, object], problem: str
) -> None:
    answer = pb.ModelInferResponse.FromString(messages.answer("1"))
    for name, value in change.items():
        answer.ClearField(name)  # type: ignore[arg-type]  # one of its fields
        answer.MergeFrom(pb.ModelInferResponse(**{name: value}))  # type: ignore[arg-type]  # same

    assert problem in messages.wrong(answer.SerializeToString(), receipt=True, name="1")


def test_an_answer_is_right_in_either_form_of_tensor() -> None:
    """MLServer may answer with typed contents where others answer in raw bytes."""
    typed = pb.ModelInferResponse.FromString(messages.answer())
    typed.ClearField("raw_output_contents")
    typed.outputs[0].contents.fp32_contents.extend(range(10))

    assert messages.wrong(messages.answer(), receipt=False) == ""
    assert messages.wrong(typed.SerializeToString(), receipt=False) == ""


def test_a_disturbed_round_does_not_move_the_ratio() -> None:
    """Rounds are compared within themselves: both paths suffered in the second."""
    speeds = Speeds(
        {
            Cell(MANY, "cinquefoil"): [sample(rate_rps=r) for r in (300.0, 30.0, 310.0)],
            Cell(MANY, "passthrough"): [sample(rate_rps=r) for r in (200.0, 20.0, 100.0)],
        },
        {},
    )

    assert speeds.better(MANY, "cinquefoil", "passthrough") == pytest.approx(1.5)


def test_better_means_less_time_with_one_in_flight_and_more_requests_with_many() -> None:
    speeds = Speeds(
        {
            Cell(SINGLE, "cinquefoil"): [sample(p50_ms=2.0, rate_rps=9.0)],
            Cell(SINGLE, "nginx"): [sample(p50_ms=1.0, rate_rps=1.0)],
            Cell(MANY, "cinquefoil"): [sample(p50_ms=1.0, rate_rps=5.0)],
            Cell(MANY, "nginx"): [sample(p50_ms=9.0, rate_rps=10.0)],
        },
        {},
    )

    assert speeds.better(SINGLE, "cinquefoil", "nginx") == 0.5
    assert speeds.better(MANY, "cinquefoil", "nginx") == 0.5


def test_the_document_names_every_path_under_every_load() -> None:
    """One that did not run is null there, with its reason beside, and meets no target."""
    samples = {
        Cell(case, path): [sample(p50_ms=2.0, rate_rps=500.0)]
        for case in CASES
        for path in PATHS
        if path != "nginx"
    }
    absent = {"nginx": "not installed: apt install nginx"}

    document = report(Found("h2load", Speeds(samples, absent))).document

    assert document is not None
    assert list(document)[:4] == ["small_1", "small_64", "image_1", "image_64"]
    assert document["small_1"] == dict.fromkeys(PATHS, 2.0) | {"nginx": None}
    assert document["image_64"] == dict.fromkeys(PATHS, 500.0) | {"nginx": None}
    assert document["absent"] == absent
    assert {row["met"] for row in document["targets"] if row["than"] == "nginx"} == {"-"}


def test_memory_that_a_router_takes_first_is_not_growth_but_what_it_goes_on_taking_is() -> None:
    start = np.linspace(30, 60, 25)
    flat = [*start, *np.full(75, 60.0)]
    leaking = [*start, *np.linspace(60, 75, 75)]

    assert growth(flat) == 0
    assert growth(leaking) > 0.1
