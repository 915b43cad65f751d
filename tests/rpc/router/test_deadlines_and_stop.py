"""A real router when time is up, what is behind it fails, or it is to stop itself."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.support.router.router_client import client, infer, queued, status
from tests.support.router.router_service import (
    World,
    computed,
    infer_request,
    refusal,
    routed,
    running,
)
from tests.support.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as made:
        yield made


# ---- time --------------------------------------------------------------------------------------


async def test_a_request_that_no_instance_takes_ends_at_the_default_timeout() -> None:
    async with running(default_timeout_s=0.05) as world:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(world)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "waiting for an instance" in str(caught.value.details())


async def test_the_timeout_parameter_is_a_deadline_and_reaches_the_worker(world: World) -> None:
    worker = await world.worker("a", lambda _: None)
    await world.route(worker)
    request = infer_request()
    request.parameters["timeout"].int64_param = 50_000

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client(world).ModelInfer(request)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "being computed" in str(caught.value.details())
    assert 0 < worker.works[0].remaining_s <= 0.05
    await until(lambda: worker.cancelled == [worker.works[0].id])


async def test_a_caller_that_goes_away_is_reported_to_the_worker(world: World) -> None:
    worker = await world.worker("a", lambda _: None)
    await world.route(worker)
    call = client(world).ModelInfer(infer_request())
    await worker.arrived.wait()

    call.cancel()

    await until(lambda: worker.cancelled == [worker.works[0].id])
    worker.finish()
    found = await status(world)
    assert (found.accepted, found.answered, found.failed) == (1, 0, 0)


async def test_a_caller_that_goes_away_while_waiting_leaves_the_queue(world: World) -> None:
    call = client(world).ModelInfer(infer_request())
    await queued(world, 1)

    call.cancel()

    await queued(world, 0)
    found = await status(world)
    assert (found.accepted, found.answered, found.failed) == (1, 0, 0)


# ---- failure of what is behind -----------------------------------------------------------------


async def test_requests_of_a_worker_that_dies_are_answered_by_another(world: World) -> None:
    dying, other = await world.worker("a", lambda _: None), await world.worker("b")
    await world.route(dying, other, shares=(1.0, 0.0))
    calls = [asyncio.create_task(infer(world)) for _ in range(4)]
    await until(lambda: len(dying.held) == 4)

    dying.answer = computed
    dying.die()

    answers = await asyncio.gather(*calls)
    assert len(answers) == 4
    assert (await status(world)).retried == 4


async def test_a_request_that_kills_its_workers_fails_after_the_second(world: World) -> None:
    workers = [await world.worker(name, lambda _: None) for name in "abc"]
    await world.route(*workers)
    call = asyncio.create_task(infer(world))
    for _ in range(2):
        await until(lambda: any(worker.held for worker in workers))
        victim = next(worker for worker in workers if worker.held)
        victim.held = []
        victim.die()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "2 workers died while they held this request" in str(caught.value.details())
    assert sum(len(worker.works) for worker in workers) == 2


async def test_a_worker_that_drains_has_its_refusals_answered_elsewhere(world: World) -> None:
    draining, other = await world.worker("a", lambda _: None), await world.worker("b")
    await world.route(draining, other, shares=(1.0, 0.0))
    call = asyncio.create_task(infer(world))
    await until(lambda: len(draining.held) == 1)

    draining.drain()
    draining.finish(lambda work: refusal(work, "draining", "UNAVAILABLE"))

    assert (await call).parameters["model_variant"].string_param == "variant-b"
    assert (await infer(world)).parameters["model_variant"].string_param == "variant-b"


async def test_a_worker_that_comes_back_is_used_again(world: World) -> None:
    worker = await world.worker("a")
    await world.route(worker)
    await infer(world)

    worker.die()

    assert await infer(world, timeout_s=5)
    assert len(worker.works) >= 2  # as it died it may have read what it is given again


async def test_a_stranger_at_a_workers_address_gets_no_request(world: World) -> None:
    stranger, right = await world.worker("stranger"), await world.worker("right")
    wrong = routed(stranger)
    wrong.segment_id = "somebody-else"
    await world.planner.route(wrong, routed(right, 0.0))
    await until(lambda: right.streams == 1)

    assert (await infer(world)).parameters["model_variant"].string_param == "variant-right"
    assert not stranger.works


# ---- the end -----------------------------------------------------------------------------------


async def healthy(world: World) -> bool:
    check: grpc.aio.UnaryUnaryMultiCallable[
        health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    ] = world.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    response = await check(health_pb2.HealthCheckRequest())
    return response.status == health_pb2.HealthCheckResponse.SERVING


async def unhealthy(world: World) -> bool:
    return not await healthy(world)


async def test_stopping_answers_what_was_accepted_and_refuses_what_comes_later() -> None:
    async with running() as world:
        worker = await world.worker("a", lambda _: None)
        await world.route(worker)
        assert await healthy(world)
        accepted = asyncio.create_task(infer(world))
        await until(lambda: len(worker.held) == 1)

        world.stop.set()
        await until(lambda: unhealthy(world))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(world)
        worker.finish()

        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await accepted
        await asyncio.wait_for(asyncio.shield(world.task), 5)
