"""Workers that lie: their link is dropped, others answer, and no counter takes what they said."""

from collections.abc import Callable

import pytest

from cinquefoil.gpuagent.v1 import worker_pb2
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.support.router.router_service import (
    POWER_LIMIT_W,
    RECEIPT,
    computed,
    infer_request,
    running,
)
from tests.support.waiting import until

Lie = Callable[[worker_pb2.Work], worker_pb2.Result]


def another_figure(**figures: float) -> Lie:
    def answer(work: worker_pb2.Work) -> worker_pb2.Result:
        found = computed(work)
        for name, value in figures.items():
            setattr(found.receipt, name, value)
        return found

    return answer


def another_answer(found_in: pb.ModelInferResponse) -> Lie:
    def answer(work: worker_pb2.Work) -> worker_pb2.Result:
        found = computed(work)
        response = pb.ModelInferResponse.FromString(found.response)
        response.MergeFrom(found_in)
        found.response = response.SerializeToString()
        return found

    return answer


def another_shape(work: worker_pb2.Work) -> worker_pb2.Result:
    found = computed(work)
    response = pb.ModelInferResponse.FromString(found.response)
    response.outputs[0].shape[0] = 2**40
    found.response = response.SerializeToString()
    return found


def another_work(work: worker_pb2.Work) -> worker_pb2.Result:
    return worker_pb2.Result(id=work.id + 1000, response=computed(work).response)


def unknown_status(work: worker_pb2.Work) -> worker_pb2.Result:
    return worker_pb2.Result(id=work.id, status="\x1b[2JFINE", message="fine")


def never_the_last(work: worker_pb2.Work) -> worker_pb2.Result:
    return worker_pb2.Result(id=work.id, response=computed(work).response, more=True)


def random_bytes(work: worker_pb2.Work) -> worker_pb2.Result:
    return worker_pb2.Result(id=work.id, response=bytes(range(200)))


@pytest.mark.parametrize(
    "lie",
    [
        another_figure(energy_j=float("nan")),
        another_figure(energy_j=-1e300),
        another_figure(idle_energy_j=1e300),
        another_figure(energy_j=POWER_LIMIT_W * 10),
        another_figure(compute_s=float("inf")),
        another_answer(pb.ModelInferResponse(id="another")),
        another_answer(pb.ModelInferResponse(model_name="another")),
        another_shape,
        another_work,
        random_bytes,
        unknown_status,
        never_the_last,
    ],
)
async def test_a_lie_ends_the_link_and_another_worker_answers(lie: Lie) -> None:
    """Each request of the liar's is answered, its slots are free, and the sums are numbers."""
    async with running() as world:
        liar, honest = await world.worker("a", lie), await world.worker("b")
        await world.route(liar, honest)
        stub = GRPCInferenceServiceStub(world.channel)
        answers = [await stub.ModelInfer(infer_request(name=str(each))) for each in range(12)]
        await until(lambda: bool(liar.works))
        status = await RouterServiceStub(world.channel).GetStatus(router_pb2.GetStatusRequest())

    assert [each.id for each in answers] == [str(each) for each in range(12)]
    assert {each.parameters["model_variant"].string_param for each in answers} == {"variant-b"}
    (model,) = status.models
    assert sum(each.in_flight for each in model.instances) == 0
    assert [each.connected for each in model.instances] == [False, True]
    energy_j = sum(each.parameters["energy_j"].double_param for each in answers)
    assert energy_j == pytest.approx(12 * RECEIPT.energy_j)
