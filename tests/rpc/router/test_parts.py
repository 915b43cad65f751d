"""Answers in parts, of decoupled models, through a real router."""

from collections.abc import AsyncIterator

import grpc
import pytest

from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.support.router.router_service import World, infer_request, refusal, running
from tests.support.router.router_streams import answers, final, part, sent, stream, streaming, texts
from tests.support.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running(max_queue=100) as made:
        yield made


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
async def test_an_empty_last_answer_is_sent_on_request(world: World, wanted: bool) -> None:
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


async def test_a_worker_that_dies_in_the_middle_of_an_answer_ends_it_with_an_error(
    world: World,
) -> None:
    """An answer that has begun cannot come from another worker without repeating parts."""
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


async def test_an_error_after_parts_is_reported(world: World) -> None:
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


# ---- the same model, with one answer ------------------------------------------------------


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
    failed = refusal(y, "no", "INTERNAL")
    worker.say(part(x, "x1"), part(y, "y1"), part(x, "x2"), part(x, more=False), failed)
    await answers(call)

    stub = GRPCInferenceServiceStub(world.channel)
    (found,) = (await stub.ModelStatistics(pb.ModelStatisticsRequest(name="digits"))).model_stats

    counts = {
        place: (stats.success.count, stats.empty_response.count, stats.fail.count)
        for place, stats in found.response_stats.items()
    }
    assert counts == {"0": (2, 0, 0), "1": (1, 0, 1), "2": (0, 1, 0)}
    assert found.response_stats["0"].success.ns > 0
