"""A running router's `/metrics`, scraped as Prometheus does; energy that is on no answer."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import TYPE_CHECKING

import grpc
import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from cinquefoil.gpuagent.v1 import worker_pb2
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.net import free_port
from tests.support.otlp import collecting
from tests.support.router.router_service import RECEIPT, World, infer_request, running
from tests.support.waiting import until

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub

Samples = dict[str, float]


def client(world: World) -> GRPCInferenceServiceAsyncStub:
    return GRPCInferenceServiceStub(world.channel)


async def scrape(address: str) -> Samples:
    """Return samples by name and labels, as PromQL writes them."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as reply:
            text: str = reply.read().decode()
            return text

    families = text_string_to_metric_families(await asyncio.to_thread(read))
    return {
        f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sample.labels.items())}}}": sample.value
        for family in families
        for sample in family.samples
    }


def failed_after_it_ran(work: worker_pb2.Work) -> worker_pb2.Result:
    return worker_pb2.Result(id=work.id, status="INTERNAL", message="NaN", receipt=RECEIPT)


async def test_the_endpoint_counts_what_clients_saw() -> None:
    """Three answers, one error of the worker, one unknown model."""
    address = f"127.0.0.1:{free_port()}"
    async with running(metrics=address) as world:
        worker = await world.worker("a")
        await world.route(worker)
        for _ in range(3):
            await client(world).ModelInfer(infer_request())
        before = await scrape(address)
        worker.answer = failed_after_it_ran
        with pytest.raises(grpc.aio.AioRpcError):
            await client(world).ModelInfer(infer_request())
        after = await scrape(address)

    assert before["cinquefoil_requests_total{model=digits,status=OK}"] == 3
    assert after["cinquefoil_requests_total{model=digits,status=INTERNAL}"] == 1
    for name in ("request", "queue", "compute"):
        count = f"cinquefoil_{name}_duration_seconds_count{{model=digits,variant=variant-a}}"
        assert before[count] == after[count] == 3
    energy = "cinquefoil_request_energy_joules_total{model=digits,variant=variant-a}"
    assert after[energy] == pytest.approx(3 * 3.6)
    assert after["cinquefoil_unclaimed_energy_joules_total{model=digits}"] == pytest.approx(3.6)
    assert after["cinquefoil_slo_attainment_ratio{model=digits,window=5m}"] == 0.75
    assert after["cinquefoil_slo_burn_rate{model=digits,window=1h}"] == pytest.approx(2.5)
    assert after["cinquefoil_share_wanted_ratio{model=digits,variant=variant-a}"] == 1.0
    assert "process_cpu_seconds_total{}" in after, "the process's own metrics are there, too"
    grown = [name for name in before if "_total{" in name and name.startswith("cinquefoil_")]
    assert all(after[name] >= before[name] for name in grown)


async def test_a_traced_answer_is_the_exemplar_of_its_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In OpenMetrics, which Prometheus prefers, and in what OpenTelemetry's collector gets."""
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    sent = ("cinquefoil-router", "cinquefoil_request_duration_seconds")
    with collecting(monkeypatch) as collector:
        async with running(metrics=address) as world:
            await world.route(await world.worker("a"))
            for flags in ("00", "01"):
                header = (("traceparent", f"00-{trace}-{span}-{flags}"),)
                await client(world).ModelInfer(infer_request(), metadata=header)
            await until(
                lambda: (
                    sent in collector.metrics
                    and sum(each.count for each in collector.metrics[sent].histogram.data_points)
                    == 2
                )
            )
            families = await asyncio.to_thread(open_metrics, address)

    shown = [
        sample.exemplar.labels
        for sample in families["cinquefoil_request_duration_seconds"].samples
        if sample.exemplar
    ]
    assert shown == [{"trace_id": trace, "span_id": span}]
    (exemplar,) = collector.metrics[sent].histogram.data_points[0].exemplars
    assert (exemplar.trace_id.hex(), exemplar.span_id.hex()) == (trace, span)
    names = {name for _, name in collector.metrics}
    assert names >= {"cinquefoil_requests_total", "cinquefoil_build_info"}


def open_metrics(address: str) -> dict[str, Metric]:
    """Return the families of a scrape that accepts OpenMetrics, by name."""
    headers = {"Accept": "application/openmetrics-text"}
    text = httpx.get(f"http://{address}/metrics", headers=headers).text
    return {family.name: family for family in open_metrics_families(text)}  # type: ignore[no-untyped-call]  # the library's


async def test_an_error_has_the_energy_that_it_cost() -> None:
    async with running() as world:
        await world.route(await world.worker("a", failed_after_it_ran))

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client(world).ModelInfer(infer_request())

    trailers = dict(caught.value.trailing_metadata())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert float(trailers["cinquefoil-energy-j"]) == 3.6
    assert float(trailers["cinquefoil-carbon-gco2e"]) == pytest.approx(1.5e-3)
    assert "grpc-status-details-bin" in trailers


async def test_work_whose_caller_has_gone_is_counted_as_unclaimed() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with running(metrics=address) as world:
        worker = await world.worker("a", lambda _: None)
        await world.route(worker)
        call = client(world).ModelInfer(infer_request())
        await worker.arrived.wait()
        call.cancel()
        await until(lambda: bool(worker.cancelled))

        worker.finish()

        async def counted() -> bool:
            found = await scrape(address)
            return found["cinquefoil_unclaimed_energy_joules_total{model=digits}"] == 3.6

        await until(counted)
        found = await scrape(address)

    assert found["cinquefoil_requests_total{model=digits,status=CANCELLED}"] == 1
    assert found["cinquefoil_slo_requests_total{model=digits,outcome=bad}"] == 0
