"""A real router between real gRPC peers whose behaviour the test scripts."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from functools import partial

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference import grpc_service_pb2 as pb
from tests.support.router.router_client import client, infer, queued, status
from tests.support.router.router_service import World, computed, infer_request, refusal, running
from tests.support.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as made:
        yield made


async def raw(world: World, body: bytes) -> bytes:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = world.channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer"
    )
    return await call(body)


# ---- answers and receipts ----------------------------------------------------------------------


async def test_a_request_comes_back_answered_with_its_receipt(world: World) -> None:
    worker = await world.worker("a")
    await world.route(worker)

    call = client(world).ModelInfer(infer_request(1, 2, 3, 4, name="mine"))
    answer = await call

    assert answer.id == "mine"
    assert answer.raw_output_contents == [b"\x00\x00\x20\x41"]  # 10.0
    assert worker.works[0].request == infer_request(1, 2, 3, 4, name="mine").SerializeToString()
    parameters = answer.parameters
    assert parameters["model_variant"].string_param == "variant-a"
    assert parameters["accuracy"].double_param == 0.9
    assert parameters["energy_j"].double_param == 3.6
    assert parameters["energy_idle_j"].double_param == 0.5
    assert parameters["energy_method"].string_param == "model"
    # 3.6 J = 1e-6 kWh, at 1000 g/kWh and a PUE of 1.5.
    assert parameters["carbon_gco2e"].double_param == pytest.approx(1.5e-3)
    trailers = dict(await call.trailing_metadata())
    assert trailers["cinquefoil-variant"] == "variant-a"
    assert float(trailers["cinquefoil-energy-j"]) == 3.6
    assert float(trailers["cinquefoil-carbon-gco2e"]) == pytest.approx(1.5e-3)


async def test_a_watcher_of_receipts_gets_the_cost_of_an_answer(world: World) -> None:
    await world.route(await world.worker("a"))
    request = router_pb2.WatchReceiptsRequest(variant="variant-a")
    watching = RouterServiceStub(world.channel).WatchReceipts(request)
    first = await anext(aiter(watching))
    await infer(world)
    receipts = [each async for response in until_one(watching) for each in response.receipts]
    watching.cancel()

    assert first.router_id
    assert [(each.variant, each.energy_j) for each in receipts] == [("variant-a", 3.6)]
    assert receipts[0].carbon_gco2e == pytest.approx(1.5e-3)
    assert abs(receipts[0].answered_at.ToSeconds() - time.time()) < 60


async def until_one(
    watching: AsyncIterable[router_pb2.WatchReceiptsResponse],
) -> AsyncIterator[router_pb2.WatchReceiptsResponse]:
    """Yield responses up to the first with receipts."""
    async for response in watching:
        yield response
        if response.receipts:
            return


async def test_carbon_is_called_unknown_until_an_intensity_is_known() -> None:
    async with running(intensity_gco2e_per_kwh=None) as world:
        await world.route(await world.worker("a"))

        answer = await client(world).ModelInfer(infer_request())

    assert answer.parameters["carbon_status"].string_param == "unknown"
    assert "carbon_gco2e" not in answer.parameters
    assert answer.parameters["energy_j"].double_param == 3.6


async def test_requests_for_one_worker_share_frames_and_never_exceed_its_credits(
    world: World,
) -> None:
    worker = await world.worker("a", lambda _: None, credits_=3)
    await world.route(worker)
    calls = [asyncio.create_task(infer(world)) for _ in range(6)]
    await until(lambda: len(worker.held) == 3)
    assert (await status(world)).queue_depth == 3

    while not all(call.done() for call in calls):
        assert len(worker.held) <= 3
        worker.finish()
        await asyncio.sleep(0.01)

    assert len(worker.works) == 6
    assert max(worker.frames) > 1, "what is freed together leaves together"


async def test_shares_decide_which_instance_answers(world: World) -> None:
    small, large = await world.worker("a"), await world.worker("b")
    await world.route(small, large, shares=(0.75, 0.25))

    answers = [await infer(world) for _ in range(20)]

    chosen = Counter(answer.parameters["model_variant"].string_param for answer in answers)
    assert chosen == {"variant-a": 15, "variant-b": 5}


# ---- errors ------------------------------------------------------------------------------------


async def test_an_unknown_model_is_not_found_and_the_message_lists_the_models(
    world: World,
) -> None:
    await world.route(await world.worker("a"))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client(world).ModelInfer(infer_request(model="digit"))

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "no model 'digit'; models are digits"


async def test_an_unknown_model_is_unavailable_while_no_table_has_arrived(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client(world).ModelInfer(infer_request(model="later"))

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert retry_s(caught.value) == 1.0


def retry_s(error: grpc.aio.AioRpcError) -> float | None:
    packed = dict(error.trailing_metadata())["grpc-status-details-bin"]
    info = error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(packed).details:
        if detail.Unpack(info):
            return float(info.retry_delay.ToTimedelta().total_seconds())
    return None


async def test_another_version_than_1_is_not_found(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client(world).ModelInfer(pb.ModelInferRequest(model_name="digits", model_version="2"))

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "its only version is '1'" in str(caught.value.details())


@pytest.mark.parametrize("body", [b"\x0a\xff", b"\xff\xff\xff", b"\x0a\x01\xff", b"\x0c"])
async def test_bytes_that_are_not_a_request_are_invalid(world: World, body: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(world, body)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_empty_request_is_refused_by_the_name_of_what_is_missing(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(world, b"")

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "model_name is required" in str(caught.value.details())


async def test_a_workers_error_is_passed_on_and_not_retried(world: World) -> None:
    worker = await world.worker("a", lambda work: refusal(work, "x is too long"))
    await world.route(worker)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await infer(world)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "x is too long"
    assert len(worker.works) == 1


async def test_a_full_queue_refuses_with_a_time_to_retry(world: World) -> None:
    """The model's max_queue is 3, and no worker takes requests."""
    waiting = [asyncio.create_task(infer(world)) for _ in range(3)]
    await queued(world, 3)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await infer(world)

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_s(caught.value) == 0.5
    await world.route(await world.worker("a"))
    assert len(await asyncio.gather(*waiting)) == 3


async def test_an_oversized_request_is_refused_with_both_sizes() -> None:
    async with running(max_request_bytes=2048) as world:
        await world.route(await world.worker("a"))

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(world, b"\0" * 4096)

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "4096 bytes; router.max_request_bytes allows 2048" in str(caught.value.details())


# ---- routing tables ----------------------------------------------------------------------------


async def test_requests_wait_for_the_first_routing_table(world: World) -> None:
    call = asyncio.create_task(infer(world))
    await queued(world, 1)
    assert not (await client(world).ServerReady(pb.ServerReadyRequest())).ready

    await world.route(await world.worker("a"))

    assert await call
    assert (await client(world).ServerReady(pb.ServerReadyRequest())).ready


async def test_a_removed_worker_finishes_what_it_holds_and_gets_nothing_more(world: World) -> None:
    old, new = await world.worker("old", lambda _: None), await world.worker("new")
    await world.route(old)
    first = asyncio.create_task(infer(world))
    await until(lambda: len(old.held) == 1)

    await world.route(new)
    second = await infer(world)
    assert old.streams == 1
    old.finish()

    assert (await first).parameters["model_variant"].string_param == "variant-old"
    assert second.parameters["model_variant"].string_param == "variant-new"
    await until(lambda: old.streams == 0)
    assert len(old.works) == 1


async def test_the_last_table_holds_while_the_planner_is_away(world: World) -> None:
    first, second = await world.worker("a"), await world.worker("b")
    await world.route(first)

    await world.planner_leaves()
    while_away = await infer(world)
    await world.planner_returns()
    await world.route(second)

    assert while_away.parameters["model_variant"].string_param == "variant-a"
    assert (await infer(world)).parameters["model_variant"].string_param == "variant-b"


async def test_load_is_reported_with_the_tables_revision_as_soon_as_it_changes() -> None:
    async with running(report_interval_s=60.0) as world:
        await world.route(await world.worker("a"))
        for _ in range(5):
            await infer(world)

        await world.route()  # an hour could pass before the next report, were it not for this

        report = world.planner.reports[-1]
        assert report.router_id
        assert report.routing_revision == 2
        (load,) = report.models
        assert (load.arrivals, load.answered, load.failed) == (5, 5, 0)
        assert load.latency_s.keys() == {"50", "90", "95", "99"}
        assert 0 < load.latency_s["50"] <= load.latency_s["99"] < 5
        assert report.window.ToTimedelta().total_seconds() > 0


async def test_waiting_for_a_parked_model_and_lost_workers_are_reported_at_once() -> None:
    """A parked model is started for a request, and a dead machine replaced, in no interval."""
    async with running(report_interval_s=3600.0) as world:
        reports = world.planner.reports
        await world.route()
        waiting = asyncio.create_task(infer(world))
        await until(lambda: reports[-1].models[0].arrivals == 1)
        worker = await world.worker("a")
        await world.route(worker)
        await waiting
        assert not any(report.unreachable_segments for report in reports)
        worker.die()
        await until(lambda: any(report.unreachable_segments == ["a"] for report in reports))


# ---- what the router says of itself ------------------------------------------------------------


async def test_models_describe_themselves_as_their_workers_do(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client(world).ModelMetadata(pb.ModelMetadataRequest(name="digits"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await world.route(await world.worker("a"))
    await infer(world)

    metadata = await client(world).ModelMetadata(pb.ModelMetadataRequest(name="digits"))
    config = (await client(world).ModelConfig(pb.ModelConfigRequest(name="digits"))).config

    assert (metadata.name, list(metadata.inputs[0].shape)) == ("digits", [-1, 4])
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 4)
    assert (list(config.input[0].dims), list(config.output[0].dims)) == ([4], [])
    assert config.parameters["variants"].string_value == "variant-a"


async def test_a_model_that_takes_one_request_at_a_time_says_that_it_does_not_batch(
    world: World,
) -> None:
    """Triton's clients then give all sizes, the first among them."""
    worker = await world.worker("a")
    worker.max_batch = 1
    await world.route(worker)
    await infer(world)

    config = (await client(world).ModelConfig(pb.ModelConfigRequest(name="digits"))).config

    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [-1, 4])


async def test_statistics_count_real_times(world: World) -> None:
    worker = await world.worker("a")
    await world.route(worker)
    await infer(world)
    await infer(world)
    for word in ("INTERNAL", "INVALID_ARGUMENT"):  # the second is no failure
        worker.answer = partial(refusal, message="no", status=word)
        with pytest.raises(grpc.aio.AioRpcError):
            await infer(world)

    (found,) = (await client(world).ModelStatistics(pb.ModelStatisticsRequest())).model_stats

    stats = found.inference_stats
    assert (found.name, found.version, found.inference_count) == ("digits", "1", 2)
    assert found.execution_count == 2
    assert (stats.success.count, stats.fail.count) == (2, 1)
    assert stats.compute_infer.ns == 8_000_000
    assert stats.queue.ns >= 2_000_000
    assert stats.success.ns > 0
    assert [(b.batch_size, b.compute_infer.count) for b in found.batch_stats] == [(1, 2)]
    assert found.last_inference > 1_600_000_000_000


async def test_status_adds_up(world: World) -> None:
    worker = await world.worker("a")
    await world.route(worker)
    for _ in range(3):
        await infer(world)

    found = await status(world)

    assert (found.accepted, found.answered, found.failed) == (3, 3, 0)
    assert found.energy_j == pytest.approx(3 * 3.6)
    assert found.carbon_gco2e == pytest.approx(3 * 1.5e-3)
    assert found.accuracy == pytest.approx(0.9)
    (instance,) = found.instances
    assert (instance.endpoint, instance.answered) == (worker.endpoint, 3)
    assert instance.connected


# ---- quotas ------------------------------------------------------------------------------------


async def test_a_client_beyond_its_quota_is_refused_and_others_are_not() -> None:
    """In flight, on unary calls; what has ended makes room again."""
    async with running(quotas={"id:batch": {"in_flight": 1}}) as world:
        worker = await world.worker("a", lambda _: None)
        await world.route(worker)

        def infer(
            name: str,
        ) -> grpc.aio.UnaryUnaryCall[pb.ModelInferRequest, pb.ModelInferResponse]:
            return client(world).ModelInfer(infer_request(), metadata=(("x-client-id", name),))

        first = infer("batch")
        await worker.arrived.wait()
        refused = infer("batch")
        other = infer("web")
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "id:batch has 1 requests in flight" in await refused.details()
        worker.finish()
        await first
        worker.answer = computed
        await infer("batch")
        worker.finish()
        await other
