"""One trace from a client over a router to a real worker, as an OpenTelemetry collector gets it."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider

from cinquefoil.planner.v1 import plan_pb2
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.telemetry.export import exported
from tests.support.otlp import Collector, collecting
from tests.support.router.router_service import infer_request, refusal, running
from tests.support.waiting import until
from tests.support.worker import worker_process


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector of OpenTelemetry, to which this process and its children export."""
    with collecting(monkeypatch) as made:
        yield made


def client_headers() -> dict[str, str]:
    """Return what an instrumented client sends, with a state of its own."""
    span = TracerProvider(shutdown_on_exit=False).get_tracer("client").start_span("client")
    identity = span.get_span_context()
    span.end()
    return {
        "traceparent": f"00-{identity.trace_id:032x}-{identity.span_id:016x}-01",
        "tracestate": "vendor=7",
    }


def numbers(span: Span) -> dict[str, float]:
    return {
        a.key: a.value.double_value for a in span.attributes if a.value.HasField("double_value")
    }


async def test_client_router_and_worker_share_a_trace_each_the_parent_of_the_next(
    tmp_path: Path, collector: Collector
) -> None:
    spec = worker_process.worker_spec(
        tmp_path, worker_process.save_model(tmp_path / "m.onnx")
    ).model_copy(update={"model": "digits"})
    headers = client_headers()
    request = worker_process.infer_request([[1.0, 2.0]])
    request.model_name = "digits"
    routed = plan_pb2.Instance(
        endpoint=spec.listen, segment_id=spec.segment_id, variant="v", share=1.0, zone="US-CAL"
    )
    with exported("router"):
        async with running() as world, worker_process.worker(spec):
            await world.planner.route(routed)
            answer = await GRPCInferenceServiceStub(world.channel).ModelInfer(
                request, metadata=tuple(headers.items()), wait_for_ready=True, timeout=30
            )
            await until(lambda: ("cinquefoil-worker", "worker.execute") in collector.spans)

    router = collector.spans["cinquefoil-router", "inference.GRPCInferenceService/ModelInfer"]
    worker = collector.spans["cinquefoil-worker", "worker.execute"]
    queue = collector.spans["cinquefoil-worker", "queue"]
    compute = collector.spans["cinquefoil-worker", "compute"]
    trace = bytes.fromhex(headers["traceparent"][3:35])
    assert {span.trace_id for span in (router, worker, queue, compute)} == {trace}
    assert router.parent_span_id == bytes.fromhex(headers["traceparent"][36:52])
    assert worker.parent_span_id == router.span_id
    assert queue.parent_span_id == compute.parent_span_id == worker.span_id
    assert {span.trace_state for span in (router, worker)} == {"vendor=7"}
    assert queue.end_time_unix_nano == compute.start_time_unix_nano
    answer_j = answer.parameters["energy_j"].double_param
    assert numbers(router)["cinquefoil.energy_j"] == answer_j
    assert numbers(worker)["cinquefoil.energy_j"] == answer_j > 0


async def test_an_error_ends_the_routers_span_with_its_status(collector: Collector) -> None:
    with exported("router"):
        async with running() as world:
            await world.route(await world.worker("a", lambda work: refusal(work, "x", "INTERNAL")))
            with pytest.raises(grpc.aio.AioRpcError):
                await GRPCInferenceServiceStub(world.channel).ModelInfer(infer_request())

    span = collector.spans["cinquefoil-router", "inference.GRPCInferenceService/ModelInfer"]
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert not span.parent_span_id


async def test_without_a_recorder_the_workers_parent_is_the_client() -> None:
    """A span that no exporter records must not stand between two that are."""
    headers = client_headers()
    async with running() as world:
        worker = await world.worker("a")
        await world.route(worker)
        await GRPCInferenceServiceStub(world.channel).ModelInfer(
            infer_request(), metadata=tuple(headers.items())
        )

    assert (worker.works[0].traceparent, worker.works[0].tracestate) == tuple(headers.values())
