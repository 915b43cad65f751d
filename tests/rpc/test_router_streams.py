"""ModelStreamInfer of a real router: what the protocol promises, between real peers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from cinquefoil.gpuagent.v1 import worker_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.rpc.status import from_wire
from tests.rpc.router_world import (
    RECEIPT,
    ScriptedWorker,
    World,
    computed,
    infer_request,
    refusal,
    running,
    until,
)

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
FINAL = "triton_final_response"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running(max_queue=100) as made:
        yield made


def stream(world: World, *, metadata: Any = None) -> Any:
    return GRPCInferenceServiceStub(world.channel).ModelStreamInfer(metadata=metadata)


async def sent(call: Any, requests: Iterable[pb.ModelInferRequest], *, close: bool = True) -> Any:
    for request in requests:
        await call.write(request)
    if close:
        await call.done_writing()
    return call


async def answers(call: Any) -> list[pb.ModelStreamInferResponse]:
    return [answer async for answer in call]


def final(answer: pb.ModelStreamInferResponse) -> bool:
    return answer.infer_response.parameters[FINAL].bool_param


async def not_serving(world: World) -> bool:
    health: Any = world.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await health(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING)


async def streaming(world: World, *, credits_: int = 4) -> ScriptedWorker:
    """Start a worker that holds its work and is of a decoupled model."""
    worker = await world.worker("a", lambda _: None, credits_=credits_)
    worker.decoupled = True
    await world.route(worker)
    return worker


def part(work: worker_pb2.Work, text: str = "", *, more: bool = True) -> worker_pb2.Result:
    """One result: a part of an answer, or the last; an empty text is an empty response."""
    request = pb.ModelInferRequest.FromString(work.request)
    response = b""
    if text:
        message = pb.ModelInferResponse(model_name="digits", model_version="1", id=request.id)
        message.raw_output_contents.append(text.encode())
        response = message.SerializeToString()
    receipt = None if more else RECEIPT
    return worker_pb2.Result(id=work.id, response=response, more=more, receipt=receipt)


def texts(found: Iterable[pb.ModelStreamInferResponse]) -> list[str]:
    return [answer.infer_response.raw_output_contents[0].decode() for answer in found]


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


async def test_bytes_that_are_no_request_are_an_error_of_the_stream_alone(world: World) -> None:
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
    worker.finish()

    first, second = [answer async for answer in replies]
    assert (first.infer_response.id, first.error_message) == ("open", "")
    assert second.infer_response.id == "new"
    assert second.error_message == "this router is shutting down"


async def test_an_idle_stream_of_a_router_that_ends_is_told_to_go_elsewhere(world: World) -> None:
    """It ends in order, with a reason, as soon as what it holds is answered; not at the cut."""
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


# ---- answers in parts --------------------------------------------------------------------------


async def test_parts_come_as_they_are_ready_and_the_last_says_so(world: World) -> None:
    """The second request's part overtakes the first's, and each arrives before the next exists."""
    worker = await streaming(world)
    call = await sent(stream(world), [infer_request(name="x"), infer_request(name="y")])
    await until(lambda: len(worker.held) == 2)
    x, y = worker.held
    replies = aiter(call)
    found = []

    for result in (part(y, "y1"), part(x, "x1"), part(x, "x2", more=False)):
        worker.say(result)
        found.append(await anext(replies))
    worker.say(part(y, "y2", more=False))
    found.append(await anext(replies))

    assert texts(found) == ["y1", "x1", "x2", "y2"]
    assert [final(answer) for answer in found] == [False, False, True, True]
    variants = {answer.infer_response.parameters["model_variant"].string_param for answer in found}
    assert variants == {"variant-a"}
    costs = ["energy_j" in answer.infer_response.parameters for answer in found]
    assert costs == [False, False, True, True], "the receipt is the last answer's"
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("wanted", [False, True])
async def test_an_empty_last_answer_is_sent_to_who_asks_for_it(world: World, wanted: bool) -> None:
    worker = await streaming(world)
    request = infer_request(name="x")
    if wanted:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    call = await sent(stream(world), [request])
    await until(lambda: len(worker.held) == 1)

    worker.say(part(worker.held[0], "only"), part(worker.held[0], more=False))

    found = await answers(call)
    assert len(found) == (2 if wanted else 1)
    assert texts(found[:1]) == ["only"]
    if wanted:
        last = found[1].infer_response
        assert final(found[1])
        assert (last.model_name, last.id, len(last.outputs)) == ("digits", "x", 0)
        assert last.parameters["energy_j"].double_param == 3.6


async def test_a_request_keeps_its_credit_until_its_last_part(world: World) -> None:
    worker = await streaming(world, credits_=1)
    call = await sent(stream(world), [infer_request(name="x"), infer_request(name="y")])
    await until(lambda: len(worker.held) == 1)
    replies = aiter(call)

    worker.say(part(worker.held[0], "x1"))
    await anext(replies)
    assert len(worker.works) == 1
    worker.say(part(worker.held[0], "x2", more=False))

    await until(lambda: len(worker.works) == 2)
    call.cancel()


async def test_a_worker_that_dies_in_the_middle_of_an_answer_is_told(world: World) -> None:
    """What was begun cannot be answered by another worker without repeating parts."""
    worker = await streaming(world)
    other = await world.worker("b")
    await world.route(worker, other, shares=(1.0, 0.0))
    call = await sent(stream(world), [infer_request(name="begun"), infer_request(name="waiting")])
    await until(lambda: len(worker.held) == 2)
    replies = aiter(call)
    worker.say(part(worker.held[0], "1"))
    await anext(replies)

    worker.die()

    found = {answer.infer_response.id: answer async for answer in replies}
    assert found["begun"].error_message == "its worker stopped in the middle of the answer"
    status = found["begun"].infer_response.parameters["cinquefoil_status"].string_param
    assert status == "UNAVAILABLE"
    assert found["waiting"].infer_response.raw_output_contents


async def test_an_error_after_parts_is_told(world: World) -> None:
    worker = await streaming(world)
    call = await sent(stream(world), [infer_request(name="x")])
    await until(lambda: len(worker.held) == 1)

    worker.say(part(worker.held[0], "1"), refusal(worker.held[0], "out of memory", "INTERNAL"))

    first, second = await answers(call)
    assert not final(first)
    assert (second.error_message, final(second)) == ("out of memory", True)


async def test_a_client_that_does_not_read_is_not_held_in_memory_for_ever(world: World) -> None:
    """Parts come at the worker's pace: who lets 16 MiB of them wait loses that request."""
    worker = await streaming(world)
    call = await sent(stream(world), [infer_request(name="x")])
    await until(lambda: len(worker.held) == 1)
    for _ in range(40):
        worker.say(part(worker.held[0], "x" * 2**20))

    await until(lambda: worker.cancelled == [worker.held[0].id])
    worker.say(part(worker.held[0], more=False))

    found = await answers(call)
    assert "wait for the client to read them" in found[-1].error_message
    assert 10 < len(found) < 40


# ---- the same model, asked for one answer ------------------------------------------------------


async def unary(world: World, *parts: tuple[str, bool]) -> pb.ModelInferResponse:
    """Call ModelInfer while the worker answers in these parts; the flag says: more follow."""
    worker = await streaming(world)
    stub = GRPCInferenceServiceStub(world.channel)
    call = stub.ModelInfer(infer_request(name="x"), timeout=5)
    await until(lambda: len(worker.held) == 1)
    worker.say(*(part(worker.held[0], text, more=more) for text, more in parts))
    return await call


@pytest.mark.parametrize("parts", [[("1", False)], [("1", True), ("", False)]])
async def test_one_response_is_an_answer_to_model_infer(
    world: World, parts: list[tuple[str, bool]]
) -> None:
    answer = await unary(world, *parts)

    assert answer.raw_output_contents == [b"1"]
    assert answer.parameters["energy_j"].double_param == 3.6


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([("1", True), ("2", True), ("3", False)], "more than one response"),
        ([("1", True), ("2", False)], "more than one response"),
        ([("", False)], "no response"),
    ],
)
async def test_any_other_number_of_responses_is_unimplemented(
    world: World, parts: list[tuple[str, bool]], words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(world, *parts)

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert words in str(caught.value.details())
    assert "call ModelStreamInfer" in str(caught.value.details())


async def test_the_models_config_says_that_it_is_decoupled(world: World) -> None:
    await streaming(world)

    answer = await GRPCInferenceServiceStub(world.channel).ModelConfig(
        pb.ModelConfigRequest(name="digits")
    )

    assert answer.config.model_transaction_policy.decoupled


async def test_statistics_count_responses_by_their_place(world: World) -> None:
    """One answer of two parts and an empty end, one that fails after its first part."""
    worker = await streaming(world)
    call = await sent(stream(world), [infer_request(name="x"), infer_request(name="y")])
    await until(lambda: len(worker.held) == 2)
    x, y = worker.held
    worker.say(part(x, "x1"), part(y, "y1"), part(x, "x2"), part(x, more=False), refusal(y, "no"))
    await answers(call)

    stub = GRPCInferenceServiceStub(world.channel)
    (found,) = (await stub.ModelStatistics(pb.ModelStatisticsRequest(name="digits"))).model_stats

    counts = {
        place: (stats.success.count, stats.empty_response.count, stats.fail.count)
        for place, stats in found.response_stats.items()
    }
    assert counts == {"0": (2, 0, 0), "1": (1, 0, 1), "2": (0, 1, 0)}
    assert found.response_stats["0"].success.ns > 0
