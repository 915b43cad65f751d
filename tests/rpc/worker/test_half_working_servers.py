"""Servers of the OpenAI API of which half works: each error names the server and what it did."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web

from services.kit.config import OpenAiRuntime
from services.kit.net import free_port
from tests.support.worker.language_worker import prompt, text_of
from tests.support.worker.worker_process import Router, Running, routed, until, worker, worker_spec

YEARS = str(31 * 365 * 86400)


class Case(NamedTuple):
    """An answer of the server, and the worker's."""

    status: int
    headers: dict[str, str]
    body: bytes
    ours: str
    says: str
    retry_after_s: float = 0.0


def events(*documents: str, kind: str = "data") -> tuple[int, dict[str, str], bytes]:
    stream = "".join(f"{kind}: {document}\n\n" for document in documents)
    return 200, {"Content-Type": "text/event-stream"}, stream.encode()


GOOD = '{"choices": [{"text": "5", "finish_reason": null}]}'
LAST = '{"choices": [{"text": "6", "finish_reason": "stop"}]}'
USAGE = '{"choices": [], "usage": {"prompt_tokens": 1e400, "completion_tokens": NaN}}'
WORD = '{"error": {"message": "no", "code": "rate_limit_exceeded"}}'
JSON = {"Content-Type": "application/json"}
PAGE = {"Content-Type": "text/html"}
SLOW = b'{"error": {"message": "slow"}}'

CASES = (
    Case(429, {"Retry-After": "7"}, SLOW, "RESOURCE_EXHAUSTED", "slow", 7),
    Case(429, {"Retry-After": YEARS}, b"", "RESOURCE_EXHAUSTED", "429 Too Many", 3600),
    Case(503, {"retry-after-ms": "250"}, b"", "UNAVAILABLE", "503 Service Unavailable", 0.25),
    Case(502, PAGE, b"<title>Bad Gateway</title>", "UNAVAILABLE", "a page, 'Bad Gateway'"),
    Case(204, {}, b"", "INTERNAL", "204 No Content"),
    Case(301, {"Location": "http://b.example/?k=s"}, b"", "INTERNAL", "to http://b.example/:"),
    Case(308, {"Location": "/v2"}, b"", "INTERNAL", "a redirect to /v2"),
    Case(401, {}, b'{"error": "Unauthorized"}', "INTERNAL", "api_key_file"),
    Case(404, {}, b"", "INTERNAL", "404 Not Found"),
    Case(500, {}, b"boom", "INTERNAL", "500 Internal Server Error: boom"),
    Case(200, PAGE, b"<p>", "INTERNAL", "200 OK and text/html instead"),
    Case(200, JSON, b'{"choices": []}', "INTERNAL", "application/json"),
    Case(*events("{nonsense"), "INTERNAL", "sent what is not an event"),
    Case(*events('{"choices": 3}'), "INTERNAL", "a chunk of another form"),
    Case(*events(GOOD), "UNAVAILABLE", "ended the answer before its end"),
    Case(*events("[DONE]"), "UNAVAILABLE", "ended the answer before its end"),
    Case(*events(WORD), "RESOURCE_EXHAUSTED", "429"),
    Case(*events('{"message": "no", "code": 503}', kind="error"), "UNAVAILABLE", "503"),
    Case(*events(GOOD, LAST), "", ""),
    Case(*events(GOOD, LAST, USAGE, "[DONE]"), "", ""),
)
FINE = "18"
HANGS = "-1"


class HalfWorking:
    """A server that lists its model and answers the prompt "7" with the case of that number."""

    def __init__(self) -> None:
        self.ready = True
        self.hangs = 0
        self.requests = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._models),
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._answer),
            ]
        )
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]}, status=200 if self.ready else 503)

    async def _answer(self, request: web.Request) -> web.Response:
        number = int((await request.json())["prompt"])
        self.requests += 1
        if number < 0:
            self.hangs += 1
            await asyncio.sleep(3600)
        case = CASES[number]
        return web.Response(status=case.status, headers=case.headers, body=case.body)


@asynccontextmanager
async def listening(server: HalfWorking, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(server.app(), shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def before(folder: Path, port: int) -> AsyncIterator[tuple[Router, Running]]:
    """Run a worker in front of the server; yield a stream to it, and the worker."""
    runtime = OpenAiRuntime(kind="openai", address=f"127.0.0.1:{port}", chat=False)
    spec = worker_spec(folder, folder / "no-file", runtime=runtime)
    async with worker(spec) as running, routed(spec.listen) as router:
        yield router, running


async def test_each_half_answer_is_an_error_that_names_the_server_and_what_it_did(
    tmp_path: Path,
) -> None:
    """One request each; status and time pass through, and a text without its usage is a text."""
    server, port = HalfWorking(), free_port()
    async with listening(server, port), before(tmp_path, port) as (router, _):
        found = [await router.infer(prompt(str(at), 5), at + 1) for at in range(len(CASES))]

    assert server.requests == len(CASES)
    for case, result in zip(CASES, found, strict=True):
        said = (result.status, result.retry_after_s, result.message)
        assert (result.status, result.retry_after_s) == (case.ours, case.retry_after_s), said
        assert case.says in result.message, said
        assert not case.ours or f"127.0.0.1:{port}" in result.message, said
        assert case.ours or text_of(result.response) == "56"


@pytest.mark.timeout(60)
async def test_a_server_that_goes_ends_its_requests_and_refuses_others_until_it_is_back(
    tmp_path: Path,
) -> None:
    """The worker stays: a new one would not help. A server of its own is started again instead."""
    server, port = HalfWorking(), free_port()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(AsyncExitStack())
        await up.enter_async_context(listening(server, port))
        router, running = await stack.enter_async_context(before(tmp_path, port))
        open_ = asyncio.create_task(router.infer(prompt(HANGS, 5), 1))
        await until(lambda: server.hangs == 1)
        await up.aclose()
        ended = await open_
        began_s = loop.time()
        refused = [await router.infer(prompt(FINE, 5), number) for number in range(2, 12)]
        elapsed_s = loop.time() - began_s
        await up.enter_async_context(listening(server, port))
        number, status = 100, "UNAVAILABLE"
        while status:
            number += 1
            status = (await router.infer(prompt(FINE, 5), number)).status
            await asyncio.sleep(0.1)
        assert running.process.returncode is None

    for result in (ended, *refused):
        assert result.status == "UNAVAILABLE"
        assert f"the model's server at 127.0.0.1:{port}" in result.message
    assert elapsed_s < 2.0


async def test_requests_at_a_server_that_is_not_ready_any_more_end_without_its_answer(
    tmp_path: Path,
) -> None:
    """It holds their connections open, as one does whose host has gone."""
    server, port = HalfWorking(), free_port()
    async with listening(server, port), before(tmp_path, port) as (router, _):
        open_ = asyncio.create_task(router.infer(prompt(HANGS, 5), 1))
        await until(lambda: server.hangs == 1)
        server.ready = False
        ended = await open_
        refused = await router.infer(prompt(FINE, 5), 2)

    for result in (ended, refused):
        assert result.status == "UNAVAILABLE"
        assert "does not have 'm' ready any more" in result.message
    assert server.requests == 1
