"""ModelStreamInfer of a real router: what the protocol promises, between real peers."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.rpc.status import from_wire
from services.router import app as router_app
from tests.support.router.router_service import World, computed, infer_request, running
from tests.support.router.router_streams import METHOD, answers, final, sent, stream
from tests.support.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running(max_queue=100) as made:
        yield made


async def not_serving(world: World) -> bool:
    health: Any = world.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await health(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING)


# ---- one answer to each request ----------------------------------------------------------------


async def test_requests_run_at_once_and_are_answered_in_order_as_the_last_ones(
    world: World,
) -> None:
    """All three are at the worker together; it answers backwards, the stream does not."""
    worker = await world.worker("a", lambda _: None)
    await world.route(worker)
    call = await sent(stream(world), [infer_request(name=name) for name in ("x", "y", "z")])
    await until(lambda: len(worker.held) == 3)

    worker.say(*(result for work in reversed(worker.held) if (result := computed(work))))

    found = await answers(call)
    assert [answer.infer_response.id for answer in found] == ["x", "y", "z"]
    assert all(final(answer) and not answer.error_message for answer in found)
    assert all(answer.infer_response.parameters["energy_j"].double_param for answer in found)
    assert await call.code() is grpc.StatusCode.OK


async def test_an_error_is_its_requests_answer_and_the_stream_goes_on(world: World) -> None:
    worker = await world.worker("a")
    await world.route(worker)
    wrong = infer_request(name="wrong")
    wrong.inputs[0].datatype = "INT8"
    unknown = infer_request(model="nothing", name="unknown")

    call = await sent(stream(world), [wrong, unknown, infer_request(name="right")])
    first, second, third = await answers(call)

    assert first.error_message == "input 'x' is FP32, got INT8"
    assert first.infer_response.id == "wrong"
    assert first.infer_response.parameters["cinquefoil_status"].string_param == "INVALID_ARGUMENT"
    assert second.error_message == "no model 'nothing'; models are digits"
    assert second.infer_response.parameters["cinquefoil_status"].string_param == "NOT_FOUND"
    assert second.infer_response.parameters["cinquefoil_reason"].string_param == "MODEL_NOT_FOUND"
    assert (third.error_message, third.infer_response.id) == ("", "right")
    assert await call.code() is grpc.StatusCode.OK


async def test_bytes_that_are_not_a_request_are_an_error_of_the_stream_alone(world: World) -> None:
    await world.route(await world.worker("a"))
    call: Any = world.channel.stream_stream(
        METHOD, response_deserializer=pb.ModelStreamInferResponse.FromString
    )()

    await call.write(b"\x0a\xff")
    await call.write(infer_request(name="right").SerializeToString())
    await call.done_writing()

    broken, right = await answers(call)
    assert "not a valid serialized inference.ModelInferRequest" in broken.error_message
    assert right.infer_response.id == "right"


async def test_a_client_may_want_the_first_error_to_end_the_stream(world: World) -> None:
    await world.route(await world.worker("a"))
    call = stream(world, metadata=(("triton_grpc_error", "true"),))

    await call.write(infer_request(model="nothing"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers(call)

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "no model 'nothing'; models are digits"


async def test_a_cancelled_stream_cancels_all_that_is_open(world: World) -> None:
    worker = await world.worker("a", lambda _: None, credits_=2)
    await world.route(worker)
    call = await sent(stream(world), [infer_request() for _ in range(4)], close=False)
    await until(lambda: len(worker.held) == 2)

    call.cancel()

    await until(lambda: sorted(worker.cancelled) == sorted(work.id for work in worker.works))
    worker.answer = computed
    worker.finish()
    other = await GRPCInferenceServiceStub(world.channel).ModelInfer(infer_request(), timeout=5)
    assert len(worker.works) == 3, "what waited was never sent"
    assert other.model_name == "digits"


async def test_the_streams_deadline_reaches_the_worker(world: World) -> None:
    worker = await world.worker("a", lambda _: None)
    await world.route(worker)
    call = GRPCInferenceServiceStub(world.channel).ModelStreamInfer(timeout=0.3)

    await call.write(infer_request())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers(call)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < worker.works[0].remaining_s < 0.4  # gRPC rounds deadlines up
    await until(lambda: worker.cancelled == [worker.works[0].id])


async def test_one_requests_timeout_is_its_answer_and_the_stream_goes_on(world: World) -> None:
    worker = await world.worker("a", lambda _: None)
    await world.route(worker)
    late = infer_request(name="late")
    late.parameters["timeout"].int64_param = 20_000
    call = await sent(stream(world), [late, infer_request(name="next")])
    replies = aiter(call)

    first = await anext(replies)
    worker.finish()
    second = await anext(replies)

    assert first.infer_response.id == "late"
    assert first.infer_response.parameters["cinquefoil_status"].string_param == "DEADLINE_EXCEEDED"
    assert (second.infer_response.id, second.error_message) == ("next", "")


async def test_a_router_that_ends_answers_what_is_open_and_refuses_the_rest(world: World) -> None:
    worker = await world.worker("a", lambda _: None)
    await world.route(worker)
    call = await sent(stream(world), [infer_request(name="open")], close=False)
    await until(lambda: len(worker.held) == 1)
    replies = aiter(call)

    world.stop.set()
    await until(lambda: not_serving(world))
    await sent(call, [infer_request(name="new")])
    await until(lambda: not_serving(world))  # on the same connection: the request came before
    worker.finish()

    first, second = [answer async for answer in replies]
    assert (first.infer_response.id, first.error_message) == ("open", "")
    assert second.infer_response.id == "new"
    assert second.error_message == "this router is shutting down"


async def test_an_idle_stream_of_a_router_that_ends_gets_unavailable(world: World) -> None:
    """The stream ends with a reason as soon as what it holds is answered; it is not cut."""
    worker = await world.worker("a", lambda _: None)
    await world.route(worker)
    idle = stream(world)
    busy = await sent(stream(world), [infer_request(name="last")], close=False)
    await until(lambda: len(worker.held) == 1)

    world.stop.set()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers(idle)
    assert not busy.done()
    worker.finish()
    answer = await busy.read()

    assert from_wire(caught.value).reason == "DRAINING"
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (answer.infer_response.id, answer.error_message) == ("last", "")
    assert await busy.code() is grpc.StatusCode.UNAVAILABLE
    assert await busy.details() == "this router is shutting down"


async def test_no_more_requests_of_a_stream_are_open_than_may_be() -> None:
    async with running(max_queue=100, max_stream_requests=2) as world:
        worker = await world.worker("a", lambda _: None)
        await world.route(worker)
        call = await sent(stream(world), [infer_request(name=str(n)) for n in range(6)])
        for _ in range(3):
            await until(lambda: len(worker.held) == 2)
            worker.finish()

        found = await answers(call)

    assert [answer.infer_response.id for answer in found] == list("012345")


async def test_a_worker_that_dies_loses_no_request_of_a_stream(world: World) -> None:
    dying, other = await world.worker("a", lambda _: None), await world.worker("b")
    await world.route(dying, other, shares=(1.0, 0.0))
    call = await sent(stream(world), [infer_request(name=str(n)) for n in range(4)])
    await until(lambda: len(dying.held) == 4)

    dying.answer = computed
    dying.die()

    assert [answer.infer_response.id for answer in await answers(call)] == list("0123")


async def test_a_router_is_ready_when_it_can_answer_that_no_plan_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first machine may come later: a rollout of routers does not wait for it."""
    monkeypatch.setattr(router_app, "_FIRST_PLAN_S", 0.01)
    async with running(default_timeout_s=0.2) as world:

        async def ready() -> bool:
            return not await not_serving(world)

        await until(ready)
        answer = await answers(await sent(stream(world), [infer_request()]))

    assert "no plan has a segment of it yet" in answer[0].error_message
