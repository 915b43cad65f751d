"""KEDA's external scaler: a client by KEDA's own contract, as its operator calls it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
import yaml

from cinquefoil.planner.v1 import planner_pb2
from keda import externalscaler_pb2 as pb
from keda.externalscaler_pb2_grpc import ExternalScalerStub
from services.kit import config
from services.kit.net import free_port
from services.kit.rpc import dial
from services.planner.app import run
from services.planner.core.replicas import wanted
from tests.support.certificates import issued
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner
from tests.support.paths import ROOT
from tests.support.planner.planner_client import Router, known_routers
from tests.support.waiting import until

POOL = {"variant": "v", "gpu": "a100-40gb", "zone": "Z", "slots": 8, "replicas_min": 0}


def scaled(folder: Path, grid: Grid, **pools: dict[str, Any]) -> config.Deployment:
    """Digits by servers of others: parked after a second without requests."""
    found = deployment(folder, grid.port)
    model = config.Model.model_validate(
        {
            "slo": {"latency_s": 20},
            "demand_rps": 1,
            "demand_min_rps": 0,
            "variants": {
                "v": {
                    "accuracy": 98,
                    "load_s": 5,
                    "profile": {"kind": "language", "parameters_b": 8},
                    "runtime": {"kind": "openai", "address": "127.0.0.1:1"},
                }
            },
            "servers": {name: POOL | each for name, each in (pools or {"here": {}}).items()},
        }
    )
    settings = found.planner.model_copy(update={"listen": f"127.0.0.1:{free_port()}"})
    return found.model_copy(update={"models": {"digits": model}, "planner": settings})


def ref(**metadata: str) -> pb.ScaledObjectRef:
    given = {"model": "digits", "scalerAddress": "cinquefoil-planner:8461", **metadata}
    return pb.ScaledObjectRef(name="vllm", namespace="models", scalerMetadata=given)


@asynccontextmanager
async def keda(made: config.Deployment) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(made.planner.listen) as channel:
        yield ExternalScalerStub(channel)


async def replicas(scaler: Any, of: pb.ScaledObjectRef) -> int:
    """Return what the HPA would want, by the metric and its target, as KEDA reads them."""
    (spec,) = (await scaler.GetMetricSpec(of)).metricSpecs
    request = pb.GetMetricsRequest(scaledObjectRef=of, metricName=spec.metricName)
    (found,) = (await scaler.GetMetrics(request)).metricValues
    assert found.metricValueFloat == found.metricValue
    return int((found.metricValueFloat or found.metricValue) / spec.targetSizeFloat)


async def wants_several(scaler: Any, router: Router) -> bool:
    """Return whether several servers are wanted for a load, which is soon forgotten."""
    router.say(0, arrivals=200)
    return await replicas(scaler, ref()) > 1


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


async def many_streams(scaler: Any, count: int) -> None:
    """Open streams, and wait for the first answer of each."""
    calls = [scaler.StreamIsActive(ref()) for _ in range(count)]
    await asyncio.gather(*(call.read() for call in calls))
    for call in calls:
        call.cancel()


async def test_replicas_follow_the_load_down_to_zero_and_the_first_request_wakes_at_once(
    tmp_path: Path, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a router's reports there is no number; KEDA then keeps what there is.

    Streams share computations: a caller with 200 of them had 200 at once, ten times a second.
    """
    computed = Mock(wraps=wanted)
    monkeypatch.setattr("services.planner.control.wanted_replicas.wanted", computed)
    made = scaled(tmp_path, grid)
    grid.intensity.publish(100.0)
    async with planner(made) as stub, keda(made) as scaler:
        code, why = await code_of(scaler.IsActive(ref()))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "no router reports" in why or "not known yet" in why
        router = Router(stub)
        router.say(0, arrivals=200)
        await until(lambda: known_routers(stub) == {"r-1"})
        await until(lambda: wants_several(scaler, router))
        assert (await scaler.IsActive(ref())).result
        before, began_s = computed.call_count, time.monotonic()
        await many_streams(scaler, 200)
        assert computed.call_count - before <= 2 + (time.monotonic() - began_s) / 0.1
        pushed: asyncio.Queue[bool] = asyncio.Queue()

        async def listen() -> None:
            async for each in scaler.StreamIsActive(ref()):
                pushed.put_nowait(each.result)

        task = asyncio.create_task(listen())
        async with asyncio.timeout(45):
            assert await pushed.get()
            router.say(0, arrivals=0)
            assert not await pushed.get()  # parked: nothing for scale_down_s
            assert await replicas(scaler, ref()) == 0
            assert not (await scaler.IsActive(ref())).result
            router.say(0, arrivals=1, window_s=0.2)
            assert await pushed.get()
        assert await replicas(scaler, ref()) >= 1
        task.cancel()
        router.call.cancel()


async def test_plans_have_no_segment_of_a_model_that_has_servers(
    tmp_path: Path, grid: Grid
) -> None:
    """Its neighbour is planned as ever, and routers still learn its policies."""
    made = scaled(tmp_path, grid)
    planned = deployment(tmp_path, grid.port).models["digits"]
    models = {"digits": planned, "chat": made.models["digits"]}
    agent = Agent("node-a", ("GPU-1",))
    async with (
        planner(made.model_copy(update={"models": models})) as stub,
        living(agent, stub),
    ):
        seen = await active(stub, 1)
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())

    assert {each.spec.model for each in seen.plan.segments} == {"digits"}
    assert {each.model for each in seen.routing.models} >= {"digits", "chat"}
    assert not [each for each in fleet.conditions if "chat" in each.subject]


async def test_what_a_trigger_names_wrongly_is_said_with_what_there_is(
    tmp_path: Path, grid: Grid
) -> None:
    made = scaled(tmp_path, grid, near={}, far={"replicas_max": 3})
    grid.intensity.publish(100.0)
    async with planner(made), keda(made) as scaler:
        missing = await code_of(scaler.GetMetricSpec(pb.ScaledObjectRef()))
        unknown = await code_of(scaler.GetMetricSpec(ref(model="other")))
        unsaid = await code_of(scaler.IsActive(ref()))
        wrong = await code_of(scaler.IsActive(ref(pool="there")))
        metric = pb.GetMetricsRequest(scaledObjectRef=ref(pool="far"), metricName="other")
        other = await code_of(scaler.GetMetrics(metric))

    assert missing == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "metadata.model: required; there are: digits",
    )
    assert unknown[0] is grpc.StatusCode.NOT_FOUND
    assert "digits" in unknown[1]
    assert unsaid == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "metadata.pool: required; digits has far, near",
    )
    assert wrong[0] is grpc.StatusCode.NOT_FOUND
    assert "far, near" in wrong[1]
    assert "cinquefoil-replicas" in other[1]


async def test_a_planner_that_stands_by_passes_calls_on_to_the_one_that_leads(
    tmp_path: Path, grid: Grid
) -> None:
    """KEDA keeps the connection that it has."""
    addresses = tuple(f"127.0.0.1:{free_port()}" for _ in range(2))
    found, stop = scaled(tmp_path, grid), asyncio.Event()
    leads, waits = (
        found.model_copy(
            update={
                "planner": found.planner.model_copy(
                    update={"listen": each, "address": addresses, "standby": True}
                )
            }
        )
        for each in addresses
    )
    grid.intensity.publish(100.0)
    async with keda(waits) as scaler, planner(leads) as stub:
        standby = asyncio.create_task(run(waits, stop), name="standby")
        router = Router(stub)
        router.say(0, arrivals=200)
        await until(lambda: known_routers(stub) == {"r-1"})
        async with grpc.aio.insecure_channel(waits.planner.listen) as channel:
            await channel.channel_ready()
        await until(lambda: wants_several(scaler, router))
        router.call.cancel()
        stop.set()
        await standby


async def test_the_trigger_of_the_documents_scales_the_pool_of_the_documents(
    tmp_path: Path, grid: Grid
) -> None:
    """docs/beside.md: its deployment file, and its ScaledObject's metadata."""
    text = (ROOT / "docs/beside.md").read_text()
    blocks = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    (file,) = (each for each in blocks if "models" in each)
    (scaled_object,) = (each for each in blocks if each.get("kind") == "ScaledObject")
    (trigger,) = scaled_object["spec"]["triggers"]
    documented = config.Deployment.model_validate(file)
    found = scaled(tmp_path, grid)
    made = found.model_copy(update={"models": documented.models})
    async with planner(made), keda(made) as scaler:
        metadata = trigger["metadata"]
        (spec,) = (
            await scaler.GetMetricSpec(pb.ScaledObjectRef(scalerMetadata=metadata))
        ).metricSpecs

    assert trigger["type"] == "external-push"
    assert spec.targetSizeFloat == 1


async def test_only_an_autoscaler_may_call(tmp_path: Path, grid: Grid) -> None:
    """By mutual TLS, as KEDA's `tlsClientCert`: other roles are refused."""
    pki = issued(tmp_path / "pki", "planner", "operator/ada", "autoscaler/keda", "viewer/eve")
    found = scaled(tmp_path, grid)
    made = found.model_copy(update={"tls": pki, "access": config.Access()})
    async with planner(made):
        for role, name, expected in (
            ("autoscaler", "keda", None),
            ("viewer", "eve", grpc.StatusCode.PERMISSION_DENIED),
        ):
            async with dial(made.planner.listen, pki.of(role, name)) as channel:
                call = ExternalScalerStub(channel).GetMetricSpec(ref())
                if expected is None:
                    assert (await call).metricSpecs
                else:
                    assert (await code_of(call))[0] is expected
