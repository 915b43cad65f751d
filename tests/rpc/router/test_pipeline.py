"""A router that drives requests through a pipeline of two stages, between scripted workers."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import numpy as np
import pytest

from cinquefoil.gpuagent.v1 import worker_pb2
from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.support.router.router_service import (
    RECEIPT,
    Answer,
    ScriptedWorker,
    World,
    infer_request,
    refusal,
    routed,
    running,
)
from tests.support.waiting import until

Tensor = pb.ModelMetadataResponse.TensorMetadata
NAMES = ("x", "h", "y")
"""The tensors that enter stage 0, pass to stage 1, and leave it."""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as made:
        yield made


def doubled(work: worker_pb2.Work) -> worker_pb2.Result:
    """Double the one tensor; give it the next name."""
    request = pb.ModelInferRequest.FromString(work.request)
    (given,), (raw,) = request.inputs, request.raw_input_contents
    name = NAMES[NAMES.index(given.name) + 1]
    tensor = pb.ModelInferResponse.InferOutputTensor(name=name, datatype="FP32", shape=given.shape)
    answer = pb.ModelInferResponse(
        model_name=request.model_name,
        id=request.id,
        outputs=[tensor],
        raw_output_contents=[(2 * np.frombuffer(raw, np.float32)).tobytes()],
    )
    return worker_pb2.Result(id=work.id, response=answer.SerializeToString(), receipt=RECEIPT)


async def staged(world: World, name: str, stage: int, answer: Answer = doubled) -> ScriptedWorker:
    """Start a worker of a stage."""
    worker = await world.worker(name, answer)
    worker.variant = "deep"
    worker.metadata = pb.ModelMetadataResponse(
        inputs=[Tensor(name=NAMES[stage], datatype="FP32", shape=[-1, 4])],
        outputs=[Tensor(name=NAMES[stage + 1], datatype="FP32", shape=[-1, 4])],
    )
    return worker


def of_stage(worker: ScriptedWorker, stage: int, share: float = 1.0) -> plan_pb2.Instance:
    instance = routed(worker, share)
    instance.stage, instance.stages = stage, 2
    return instance


async def route(world: World, *instances: plan_pb2.Instance) -> None:
    """Send requests to these instances, and wait until the router is ready for them."""
    await world.planner.route(*instances)
    await world.acknowledged()

    async def connected() -> bool:
        said = (await status(world)).instances
        return sum(each.connected for each in said) >= len(instances)

    await until(connected)


async def status(world: World) -> router_pb2.ModelStatus:
    response = await RouterServiceStub(world.channel).GetStatus(router_pb2.GetStatusRequest())
    return response.models[0]


async def infer(
    world: World, request: pb.ModelInferRequest | None = None, timeout_s: float = 5.0
) -> pb.ModelInferResponse:
    stub = GRPCInferenceServiceStub(world.channel)
    return await stub.ModelInfer(request or infer_request(1, 2, 3, 4), timeout=timeout_s)


def values(answer: pb.ModelInferResponse) -> list[float]:
    return [float(each) for each in np.frombuffer(answer.raw_output_contents[0], np.float32)]


async def test_an_answer_has_gone_through_both_stages_and_has_the_cost_of_both(
    world: World,
) -> None:
    """The second stage gets tensors as they are, and alone learns which outputs are wanted."""
    first, second = await staged(world, "a", 0), await staged(world, "b", 1)
    await route(world, of_stage(first, 0), of_stage(second, 1))
    request = infer_request(1, 2, 3, 4, name="mine")
    request.outputs.add(name="y")

    answer = await infer(world, request)

    assert (answer.id, answer.outputs[0].name) == ("mine", "y")
    assert values(answer) == [4, 8, 12, 16]
    assert answer.parameters["model_variant"].string_param == "deep"
    assert answer.parameters["accuracy"].double_param == 0.9
    assert answer.parameters["energy_j"].double_param == 2 * 3.6
    assert answer.parameters["carbon_gco2e"].double_param == pytest.approx(2 * 1.5e-3)
    assert first.works[0].request == request.SerializeToString(), "untouched"
    passed = pb.ModelInferRequest.FromString(second.works[0].request)
    assert [tensor.name for tensor in passed.inputs] == ["h"]
    assert [tensor.name for tensor in passed.outputs] == ["y"]


async def test_clients_see_one_model_that_answered_once(world: World) -> None:
    first, second = await staged(world, "a", 0), await staged(world, "b", 1)
    await route(world, of_stage(first, 0), of_stage(second, 1))
    stub = GRPCInferenceServiceStub(world.channel)

    async def requests() -> AsyncIterator[pb.ModelInferRequest]:
        yield infer_request(1, 2, 3, 4)

    (streamed,) = [each async for each in stub.ModelStreamInfer(requests())]

    assert values(streamed.infer_response) == [4, 8, 12, 16]
    metadata = await stub.ModelMetadata(pb.ModelMetadataRequest(name="digits"))
    assert [tensor.name for tensor in metadata.inputs] == ["x"]
    assert [tensor.name for tensor in metadata.outputs] == ["y"]
    (statistics,) = (
        await stub.ModelStatistics(pb.ModelStatisticsRequest(name="digits"))
    ).model_stats
    assert (statistics.inference_count, statistics.inference_stats.success.count) == (1, 1)
    assert statistics.inference_stats.compute_infer.ns == pytest.approx(2 * 4e6)
    assert sorted(each.stage for each in (await status(world)).instances) == [0, 1]


async def test_what_a_worker_died_with_goes_on_from_the_last_stages_answer(world: World) -> None:
    first = await staged(world, "a", 0)
    doomed, other = await staged(world, "b", 1, lambda _: None), await staged(world, "c", 1)
    await route(world, of_stage(first, 0), of_stage(doomed, 1, 1.0), of_stage(other, 1, 0.0))
    call = asyncio.create_task(infer(world))
    await until(lambda: len(doomed.held) == 1)

    doomed.die()

    assert values(await call) == [4, 8, 12, 16]
    assert len(first.works) == 1, "the first stage is not done again"
    assert (await status(world)).retried == 1


async def test_a_request_that_waits_for_a_stage_that_is_gone_restarts_on_another_variant(
    world: World,
) -> None:
    """Meanwhile new requests are not given to a pipeline that cannot answer them."""
    first, second = await staged(world, "a", 0), await staged(world, "b", 1, lambda _: None)
    whole = await world.worker("w")
    await route(world, of_stage(first, 0), of_stage(second, 1), routed(whole, 0.0))
    begun = asyncio.create_task(infer(world))
    await until(lambda: len(second.held) == 1)

    await world.planner.route(of_stage(first, 0), routed(whole, 0.0))
    await world.acknowledged()
    second.die()
    answers = await asyncio.gather(begun, infer(world))

    assert {each.parameters["model_variant"].string_param for each in answers} == {"variant-w"}
    assert all(values(each) == [10.0] for each in answers)
    assert len(first.works) == 1
    begun_energy_j = [each.parameters["energy_j"].double_param for each in answers]
    assert begun_energy_j == [2 * 3.6, 3.6], "what was in vain counts as well"


async def test_an_error_of_the_second_stage_is_the_answer(world: World) -> None:
    first = await staged(world, "a", 0)
    second = await staged(world, "b", 1, lambda work: refusal(work, "cannot", "INTERNAL"))
    await route(world, of_stage(first, 0), of_stage(second, 1))

    with pytest.raises(grpc.aio.AioRpcError, match="cannot") as caught:
        await infer(world)

    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert (await status(world)).failed == 1


async def test_stages_that_do_not_belong_together_are_refused(world: World) -> None:
    first, second = await staged(world, "a", 0), await staged(world, "b", 1)
    second.metadata = pb.ModelMetadataResponse(inputs=[Tensor(name="z", datatype="FP32")])
    await route(world, of_stage(first, 0), of_stage(second, 1))

    with pytest.raises(grpc.aio.AioRpcError, match="takes 'z', which no stage before it returns"):
        await infer(world)


async def test_a_deadline_and_a_caller_that_goes_reach_the_stage_that_computes(
    world: World,
) -> None:
    first, second = await staged(world, "a", 0), await staged(world, "b", 1, lambda _: None)
    await route(world, of_stage(first, 0), of_stage(second, 1))
    call = asyncio.create_task(infer(world, timeout_s=3.0))
    await until(lambda: len(second.held) == 1)

    call.cancel()

    await until(lambda: second.cancelled == [second.works[0].id])
    assert 0 < second.works[0].remaining_s < first.works[0].remaining_s < 3.5
    assert first.cancelled == []
