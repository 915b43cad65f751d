"""Answers of peer regions' routers: one that lies changes nothing, this region answers."""

import math

import pytest

from inference import grpc_service_pb2 as pb
from services.router.adapters.answer_check import WrongAnswer
from services.router.adapters.region_answer import checked
from services.router.core.model import Request

REQUEST = Request(0, "digits", b"", 0.0, 1.0, id="1")
RECEIPT = (("cinquefoil-variant", "small"), ("cinquefoil-energy-j", "0.5"))


def answer(model: str = "digits", id_: str = "1", **figures: float) -> bytes:
    found = pb.ModelInferResponse(model_name=model, id=id_)
    for name, value in figures.items():
        found.parameters[name].double_param = value
    return found.SerializeToString()


def test_a_receipt_that_can_be_passes_and_no_other_metadata_does() -> None:
    """Metadata that gRPC and others add stays out of the client's answer."""
    others = (("server", "x"), ("x-secret-bin", b"\x00"), ("set-cookie", "a"))

    assert checked(answer(energy_j=0.5), (*RECEIPT, *others), REQUEST, 0.1) == RECEIPT


@pytest.mark.parametrize(
    "lie",
    [
        answer(model="other"),
        answer(id_="2"),
        answer(energy_j=math.nan),
        answer(energy_j=-1.0),
        answer(energy_j=1e300),
        answer(carbon_gco2e=math.inf),
        b"\xff",
    ],
)
def test_an_answer_that_cannot_be_is_refused(lie: bytes) -> None:
    """Another model or request, a figure that physics forbids, bytes that are none."""
    with pytest.raises(WrongAnswer):
        checked(lie, RECEIPT, REQUEST, 0.1)


@pytest.mark.parametrize("value", ["nan", "-1", "inf", "1e300", "x" * 300, "", b"\xff"])
def test_metadata_that_cannot_be_is_refused(value: str | bytes) -> None:
    """They become figures in clients' accounts."""
    with pytest.raises(WrongAnswer):
        checked(answer(), (("cinquefoil-energy-j", value),), REQUEST, 0.1)
