"""Figures and answers of workers: what cannot be is not believed."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.kit.request_cost import Cost, Usage
from services.router.adapters.answer_check import AnswerCheck, CostCheck, WrongAnswer
from services.router.core.model import Request

REQUEST = Request(7, "digits", b"x" * 100, arrived_s=10.0, deadline_s=20.0, id="mine")
COST = Cost(3.0, 1.0, "counter", 0.1, 0.2, 4)
TEXT = Usage(20, 30, 0.5, 0.01)
METADATA = pb.ModelMetadataResponse(
    outputs=[
        pb.ModelMetadataResponse.TensorMetadata(name="y", datatype="FP32", shape=[-1, 2]),
        pb.ModelMetadataResponse.TensorMetadata(name="text", datatype="BYTES", shape=[-1]),
    ]
).SerializeToString()


def answer(*outputs: tuple[str, str, list[int], bytes], **head: Any) -> bytes:
    found = pb.ModelInferResponse(**{"model_name": "digits", "id": "mine", **head})
    for name, datatype, shape, raw in outputs:
        found.outputs.add(name=name, datatype=datatype, shape=shape)
        found.raw_output_contents.append(raw)
    return found.SerializeToString()


def test_classes_are_texts_only_where_they_are_wanted() -> None:
    """An answer of one request is no leave for the next."""
    best = answer(("y", "BYTES", [1, 1], b"\x03\0\0\0" + b"1:0"))
    wanted = REQUEST._replace(body=b"...classification...")
    known = AnswerCheck()
    known.learn(METADATA)

    known.check(best, wanted)
    with pytest.raises(WrongAnswer, match="its model has"):
        known.check(best, REQUEST)


def check(response: bytes, metadata: bytes = METADATA) -> None:
    known = AnswerCheck()
    known.learn(metadata)
    for _ in range(2):  # also where the description is known
        known.check(response, REQUEST)


@pytest.mark.parametrize(
    "lie",
    [
        {"energy_j": float("nan")},
        {"energy_j": -1e300},
        {"energy_j": 1e300},
        {"energy_j": 1450.0},  # more than 1.5 times 300 W in 2 s, a tenth, and a second
        {"idle_energy_j": float("inf")},
        {"idle_energy_j": 3.9e7},  # more than that in a day
        {"idle_energy_j": -1e-9},
        {"queue_s": float("nan")},
        {"queue_s": 4.0},
        {"compute_s": -1.0},
        {"compute_s": 4.0},
        {"batch_size": 2**31},
        {"items": 2**31},
        {"method": "counter\r\nx: y"},
        {"usage": TEXT._replace(input_tokens=2**31)},
        {"usage": TEXT._replace(output_tokens=10**6)},
        {"usage": TEXT._replace(first_token_s=float("nan"))},
        {"usage": TEXT._replace(token_s=-1.0)},
    ],
    ids=str,
)
def test_a_figure_that_cannot_be_is_refused(lie: dict[str, object]) -> None:
    """Each is finite, at least 0, and at most what physics gives in the time since it arrived."""
    check_cost = CostCheck(300.0, 10.0)
    check_cost(replace(COST, usage=TEXT), REQUEST, 12.0)
    figures: dict[str, Any] = {"usage": TEXT, **lie}
    with pytest.raises(WrongAnswer):
        check_cost(replace(COST, **figures), REQUEST, 12.0)


@pytest.mark.parametrize("figure", ["energy_j", "idle_energy_j"])
def test_receipts_sum_to_no_more_than_the_gpu_can_draw(figure: str) -> None:
    """A thousand requests at a time are on one GPU; idle, it was for no more than a day before."""
    check_cost, day_s = CostCheck(300.0, 10.0), 86_400.0 if figure == "idle_energy_j" else 0.0
    most_w, none = 300.0 * 1.5, replace(COST, energy_j=0.0, idle_energy_j=0.0)
    figures: dict[str, Any] = {figure: (day_s / 10 + 2) * most_w}
    cost = replace(none, **figures)
    believed = 0
    with suppress(WrongAnswer):
        while believed < 1000:
            check_cost(cost, REQUEST, 12.0)
            believed += 1

    assert 0 < believed * (day_s / 10 + 2) <= 2 + 1 + day_s


@given(
    st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60), st.floats(0, 450)), max_size=30),
)
def test_what_one_gpu_can_draw_is_believed(busy: list[tuple[float, float, float]]) -> None:
    """Batches one after another, each at up to 1.5 times the limit, whenever their clients came."""
    check_cost, now_s = CostCheck(300.0, 10.0), 10.0
    for idle_s, busy_s, power_w in busy:
        sent_s, now_s = now_s + idle_s, now_s + idle_s + busy_s
        request = REQUEST._replace(arrived_s=sent_s)
        cost = Cost(power_w * busy_s, 50.0 * idle_s, "counter", 0.0, busy_s, 1)
        check_cost(cost, request, now_s)


NUMBERS = st.floats() | st.sampled_from([1e300, -0.0, 5e-324])


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_what_passes_adds_up(energy_j: float, idle_j: float, queue_s: float, run_s: float) -> None:
    """A counter that a thousand believed receipts are added to stays a number."""
    try:
        CostCheck(0.0, 10.0)(Cost(energy_j, idle_j, "model", queue_s, run_s, 1), REQUEST, 12.0)
    except WrongAnswer:
        return
    assert all(0 <= 1000 * each < 1e15 for each in (energy_j, idle_j, queue_s, run_s))


@pytest.mark.parametrize(
    "honest",
    [
        answer(("y", "FP32", [3, 2], bytes(24))),
        answer(("y", "FP32", [0, 2], b"")),
        answer(("text", "BYTES", [1], b"\x01\0\0\0a")),
        answer(("y", "FP32", [1, 2], bytes(8)), ("text", "BYTES", [1], bytes(4))),
        answer(("y", "FP32", [10_000, 2], bytes(80_000))),
        answer(model_name="theirs") + answer(),  # an external server's, named back
        answer(),
    ],
)
def test_an_honest_answer_passes(honest: bytes) -> None:
    """Outputs may be some of the model's, of any batch, also none."""
    check(honest)


def without_raw(**contents: Any) -> bytes:
    found = pb.ModelInferResponse(model_name="digits", id="mine")
    found.outputs.add(**{"name": "y", "datatype": "FP32", "shape": [1, 2], **contents})
    return found.SerializeToString()


def test_contents_may_travel_otherwise() -> None:
    """Typed contents, and those in shared memory, have no raw entry."""
    check(without_raw(contents=pb.InferTensorContents(fp32_contents=[1, 2])))
    check(without_raw(parameters={"shared_memory_region": pb.InferParameter(string_param="r")}))


@pytest.mark.parametrize(
    "lie",
    [
        answer(id="another"),
        answer(model_name="another"),
        answer(("y", "FP32", [2**40, 2], bytes(8))),
        answer(("y", "FP32", [-1, 2], bytes(8))),
        answer(("y", "FP32", [1] * 65, bytes(4))),
        answer(("text", "BYTES", [2**40], bytes(8))),
        without_raw(contents=pb.InferTensorContents(fp32_contents=[1] * 9), shape=[2**40]),
        answer(("y", "FP64", [1, 2], bytes(16))),
        answer(("z", "FP32", [1, 2], bytes(8))),
        answer(("y", "FP32", [2, 2], bytes(8))),
        answer(("y", "FP32", [1, 2], bytes(8)))[:-1],
        without_raw(),
        b"\xff" * 40,
        bytes(range(256)),
    ],
)
def test_an_answer_that_is_not_the_requests_is_refused(lie: bytes) -> None:
    """Another id, model, output or datatype, contents of another size, and random bytes."""
    with pytest.raises(WrongAnswer):
        check(lie)


@given(st.binary(max_size=200))
def test_random_bytes_end_in_one_way(data: bytes) -> None:
    """Whatever a worker sends, nothing but a refusal comes out."""
    with suppress(WrongAnswer):
        check(data)


def test_shapes_without_metadata_fit_their_contents() -> None:
    """A server that does not describe its model is held to what it says of each output."""
    check(answer(("any", "INT64", [2], bytes(16))), b"")
    with pytest.raises(WrongAnswer):
        check(answer(("any", "INT64", [2**40], bytes(16))), b"")
