"""Servers of a pool found through Kubernetes' API, whose answers are as its documents say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp.test_utils import TestServer

from envoy_ext_proc import ext_proc_pb2
from envoy_ext_proc.ext_proc_pb2_grpc import ExternalProcessorStub
from services.kit.clock import RealClock
from services.kit.config import Model, ServerPool
from services.kit.errors import FailedPrecondition
from services.kit.kubernetes import Cluster
from services.kit.net import free_port
from services.router.adapters.kubernetes import follow
from services.router.picker import pool_follower
from tests.support import kubernetes_api
from tests.support.kubernetes_api import KubernetesApi
from tests.support.openai_server import Counting
from tests.support.router.router_client import status
from tests.support.router.router_service import running
from tests.support.waiting import until

POOL = {"variant": "v", "gpu": "a100-40gb", "zone": "DE"}


def pod(name: str, ip: str, *, ready: bool = True, leaving: bool = False) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
    return {
        "metadata": {"uid": name, "name": name, "labels": {"app": "vllm"}, **gone},
        "status": {"podIP": ip, "conditions": conditions},
    }


def slices(name: str, **ready: bool) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": name,
            "name": name,
            "labels": {"kubernetes.io/service-name": "vllm"},
        },
        "ports": [{"port": 9000}, {"port": 8000}],
        "endpoints": [
            {"addresses": [ip.replace("_", ".")[1:]], "conditions": {"ready": is_ready}}
            for ip, is_ready in ready.items()
        ],
    }


PODS = "/api/v1/namespaces/models/pods"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools"


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.running() as api:
        yield api


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The folder of a ServiceAccount."""
    return kubernetes_api.account(tmp_path)


def reached(account: Path, url: str) -> AbstractAsyncContextManager[Cluster]:
    """The API server of a test."""
    return Cluster.reached("models.*.servers", "config.models.*.servers", account, url)


@asynccontextmanager
async def following(
    api: KubernetesApi, account: Path, pool: Mapping[str, Any]
) -> AsyncIterator[list[tuple[str, ...]]]:
    """Follow a pool while the block runs; yield its addresses as they were reported."""
    found = list[tuple[str, ...]]()
    async with reached(account, api.url) as cluster:
        given = ServerPool.model_validate({**POOL, **pool})
        task = asyncio.create_task(follow(cluster, given, found.append, "chat", RealClock()))
        yield found
        task.cancel()
        await asyncio.wait([task])


async def test_an_inference_pool_is_its_ready_pods_now_and_after_each_change(
    api: KubernetesApi, account: Path
) -> None:
    """Selector and port come from the InferencePool; a pod that leaves or is not ready is out."""
    ports = [{"number": 8000}]
    spec = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": ports}
    await api.apply(POOLS, {"metadata": {"name": "chat"}, "spec": spec})
    await api.apply(PODS, pod("a", "10.0.0.1"))
    await api.apply(PODS, pod("b", "10.0.0.2", ready=False))
    await api.apply(PODS, pod("c", "10.0.0.3", leaving=True))
    async with following(api, account, {"inference_pool": "chat"}) as found:
        await until(lambda: found == [("10.0.0.1:8000",)])
        await api.apply(PODS, pod("b", "10.0.0.2"))
        await until(lambda: found[-1] == ("10.0.0.1:8000", "10.0.0.2:8000"))
        await api.delete(PODS, "a")
        await until(lambda: found[-1] == ("10.0.0.2:8000",))
        await api.delete(PODS, "b")
        await api.compact()
        await api.end_watches()
        await api.apply(PODS, pod("d", "fd00::1"))
        await until(lambda: found[-1] == ("[fd00::1]:8000",))
    assert api.selectors[0] == "app=vllm"


async def test_the_first_request_waits_for_the_first_server_and_one_that_leaves_gets_no_more(
    api: KubernetesApi, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From zero: the planner hears of it at once (KEDA then starts a pod), and the pod answers."""
    vllm = TestServer(Counting(account / "fault", "").app())
    await vllm.start_server()
    monkeypatch.setattr(pool_follower, "Cluster", Reached(account, api.url))
    pool = {**POOL, "zone": "US-CAL", "selector": {"app": "vllm"}, "port": vllm.port}
    profile = {"kind": "language", "parameters_b": 8}
    runtime = {"kind": "openai", "address": "127.0.0.1:1"}
    model = {
        "slo": {"latency_s": 30},
        "demand_rps": 1.0,
        "demand_min_rps": 0.0,
        "variants": {"v": {"accuracy": 0.8, "profile": profile, "runtime": runtime}},
        "servers": {"here": {**pool, "replicas_min": 0}},
    }
    listen = f"127.0.0.1:{free_port()}"
    async with (
        running(picker_listen=listen, sections={"models": {"chat": model}}) as world,
        grpc.aio.insecure_channel(listen) as channel,
    ):
        call: Any = ExternalProcessorStub(channel).Process()
        head = ext_proc_pb2.HttpHeaders(end_of_stream=True)
        await call.write(ext_proc_pb2.ProcessingRequest(request_headers=head))
        reading = asyncio.create_task(call.read())

        async def waits() -> bool:
            reported = [each.models for each in world.planner.reports]
            arrived = sum(one.arrivals for models in reported for one in models)
            return arrived == 1 and (await status(world)).queue_depth == 1

        await until(waits, 20)
        assert not reading.done()
        await api.apply(PODS, pod("a", "127.0.0.1"))
        chosen = (await reading).request_headers.response.header_mutation.set_headers[0].header
        assert chosen.raw_value.decode() == f"127.0.0.1:{vllm.port}"
        await api.delete(PODS, "a")

        async def leaves() -> bool:
            return not (await status(world)).instances

        call.cancel()
        await until(leaves, 20)
        given = {"addresses": [f"127.0.0.1:{vllm.port}"]}
        servers = {"here": {**POOL, "zone": "US-CAL", **given}}
        moved = Model.model_validate({**model, "servers": servers})
        models = {**world.made.models, "chat": moved}
        await world.reloads.apply(world.made.model_copy(update={"models": models}))

        async def is_picked() -> bool:
            again: Any = ExternalProcessorStub(channel).Process()
            await again.write(ext_proc_pb2.ProcessingRequest(request_headers=head))
            found = (await again.read()).request_headers.response.header_mutation.set_headers
            again.cancel()
            return [each.header.raw_value.decode() for each in found][:1] == given["addresses"]

        await until(is_picked, 20)
    await vllm.close()


class Reached:
    """`Cluster` of a test's API server."""

    def __init__(self, account: Path, url: str) -> None:
        self._account, self._url = account, url

    def reached(self, setting: str, rights: str) -> AbstractAsyncContextManager[Cluster]:
        return Cluster.reached(setting, rights, self._account, self._url)


async def test_a_service_is_the_ready_endpoints_of_its_slices(
    api: KubernetesApi, account: Path
) -> None:
    await api.apply(SLICES, slices("s", _10_0_0_1=True, _10_0_0_2=False))
    async with following(api, account, {"service": "vllm", "port": 8000}) as found:
        await until(lambda: found == [("10.0.0.1:8000",)])


async def test_a_missing_right_is_said_with_the_setting_that_gives_it(
    api: KubernetesApi, account: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    api.rights, said = set(), [""]

    def refused() -> bool:
        said[0] += capfd.readouterr().err
        return "config.models.*.servers" in said[0]

    async with following(api, account, {"selector": {"a": "b"}, "port": 1}):
        await until(refused)


async def test_outside_a_cluster_it_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(FailedPrecondition, match=r"models\.\*\.servers: needs a pod"):
        async with Cluster.reached("models.*.servers", "", tmp_path):
            pass
