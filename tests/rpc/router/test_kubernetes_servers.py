"""Servers of a pool found through Kubernetes' API, whose answers are as its documents say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from envoy_ext_proc import ext_proc_pb2
from envoy_ext_proc.ext_proc_pb2_grpc import ExternalProcessorStub
from services.kit.clock import RealClock
from services.kit.config import ServerPool
from services.kit.errors import FailedPrecondition
from services.kit.net import free_port
from services.router.adapters.kubernetes import Cluster
from services.router.picker import app
from tests.support.openai_server import Counting
from tests.support.router.router_client import status
from tests.support.router.router_service import running, until

POOL = {"variant": "v", "gpu": "a100-40gb", "zone": "DE"}


def pod(name: str, ip: str, *, ready: bool = True, leaving: bool = False) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
    return {
        "metadata": {"uid": name, "name": name, **gone},
        "status": {"podIP": ip, "conditions": conditions},
    }


def slices(name: str, **ready: bool) -> dict[str, Any]:
    return {
        "metadata": {"uid": name, "name": name},
        "ports": [{"port": 9000}, {"port": 8000}],
        "endpoints": [
            {"addresses": [ip.replace("_", ".")[1:]], "conditions": {"ready": is_ready}}
            for ip, is_ready in ready.items()
        ],
    }


class ApiServer:
    """Lists and watches objects; refuses without the token."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.selectors: list[str] = []
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.allowed = True

    def app(self) -> web.Application:
        app = web.Application()
        pools = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools/{name}"
        for path in (
            "/api/v1/namespaces/models/pods",
            "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices",
        ):
            app.router.add_get(path, self._objects)
        app.router.add_get(pools, self._pool)
        return app

    async def _pool(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != "chat":
            return web.Response(status=404)
        spec = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]}
        return web.json_response({"spec": spec})

    async def _objects(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer secret" or not self.allowed:
            return web.Response(status=403)
        if "watch" not in request.query:
            self.selectors.append(request.query["labelSelector"])
            return web.json_response({"metadata": {"resourceVersion": "5"}, "items": self.items})
        answer = web.StreamResponse()
        await answer.prepare(request)
        while (event := await self.events.get()) is not None:
            await answer.write(json.dumps(event).encode() + b"\n")
        return answer

    def change(self, kind: str, found: Mapping[str, Any]) -> None:
        self.events.put_nowait({"type": kind, "object": found})


@pytest.fixture
async def api() -> AsyncIterator[tuple[ApiServer, str]]:
    made = ApiServer()
    server = TestServer(made.app())
    await server.start_server()
    yield made, f"http://127.0.0.1:{server.port}"
    made.events.put_nowait(None)
    await server.close()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The folder of a ServiceAccount."""
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("models")
    return tmp_path


async def test_an_inference_pool_is_its_ready_pods_now_and_after_each_change(
    api: tuple[ApiServer, str], account: Path
) -> None:
    """Selector and port come from the InferencePool; a pod that leaves or is not ready is out."""
    server, url = api
    server.items = [
        pod("a", "10.0.0.1"),
        pod("b", "10.0.0.2", ready=False),
        pod("c", "10.0.0.3", leaving=True),
    ]
    pool, found = ServerPool.model_validate({**POOL, "inference_pool": "chat"}), list[Any]()
    async with Cluster.reached(account, url) as cluster:
        task = asyncio.create_task(cluster.follow(pool, found.append, "chat", RealClock()))
        await until(lambda: found == [("10.0.0.1:8000",)])
        server.change("MODIFIED", pod("b", "10.0.0.2"))
        await until(lambda: found[-1] == ("10.0.0.1:8000", "10.0.0.2:8000"))
        server.change("DELETED", pod("a", "10.0.0.1"))
        await until(lambda: found[-1] == ("10.0.0.2:8000",))
        server.items = [pod("d", "fd00::1")]
        server.change("ERROR", {"code": 410, "message": "too old resource version"})
        server.events.put_nowait(None)
        await until(lambda: found[-1] == ("[fd00::1]:8000",))
        task.cancel()
        await asyncio.wait([task])
    assert server.selectors[0] == "app=vllm"


async def test_the_first_request_waits_for_the_first_server_and_one_that_leaves_gets_no_more(
    api: tuple[ApiServer, str], account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From zero: the planner hears of it at once (KEDA then starts a pod), and the pod answers."""
    server, url = api
    vllm = TestServer(Counting(account / "fault", "").app())
    await vllm.start_server()
    monkeypatch.setattr(app, "Cluster", Reached(account, url))
    pool = {**POOL, "zone": "US-CAL", "selector": {"app": "x"}, "port": vllm.port}
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
        server.change("ADDED", pod("a", "127.0.0.1"))
        chosen = (await reading).request_headers.response.header_mutation.set_headers[0].header
        assert chosen.raw_value.decode() == f"127.0.0.1:{vllm.port}"
        server.change("DELETED", pod("a", "127.0.0.1"))

        async def leaves() -> bool:
            return not (await status(world)).instances

        call.cancel()
        await until(leaves, 20)
    await vllm.close()


class Reached:
    """`Cluster` of a test's API server."""

    def __init__(self, account: Path, url: str) -> None:
        self._account, self._url = account, url

    def reached(self) -> AbstractAsyncContextManager[Cluster]:
        return Cluster.reached(self._account, self._url)


async def test_a_service_is_the_ready_endpoints_of_its_slices(
    api: tuple[ApiServer, str], account: Path
) -> None:
    server, url = api
    server.items = [slices("s", _10_0_0_1=True, _10_0_0_2=False)]
    pool, found = ServerPool.model_validate({**POOL, "service": "vllm", "port": 8000}), list[Any]()
    async with Cluster.reached(account, url) as cluster:
        task = asyncio.create_task(cluster.follow(pool, found.append, "chat", RealClock()))
        await until(lambda: found == [("10.0.0.1:8000",)])
        task.cancel()
        await asyncio.wait([task])
    assert server.selectors == ["kubernetes.io/service-name=vllm"]


async def test_a_missing_right_is_said_with_the_setting_that_gives_it(
    api: tuple[ApiServer, str], account: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server, url = api
    server.allowed = False
    pool, said = ServerPool.model_validate({**POOL, "selector": {"a": "b"}, "port": 1}), [""]

    def refused() -> bool:
        said[0] += capfd.readouterr().err
        return "router.picker.rbac" in said[0]

    async with Cluster.reached(account, url) as cluster:
        task = asyncio.create_task(cluster.follow(pool, lambda _: None, "chat", RealClock()))
        await until(refused)
        task.cancel()
        await asyncio.wait([task])


async def test_outside_a_cluster_it_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(FailedPrecondition, match="give addresses"):
        async with Cluster.reached(tmp_path):
            pass
