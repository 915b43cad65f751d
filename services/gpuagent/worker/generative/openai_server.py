"""A language model that a server of the OpenAI API runs: vLLM, SGLang, llama.cpp's, or another.

Each request is one HTTP request; the server frees its slot when it is closed. Source:
OpenAI, "API reference", completions and chat completions; vLLM, "OpenAI-compatible server"
(`/health`, `/metrics`, `max_model_len`, `continuous_usage_stats`).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.worker.external_server import Server, started
from services.gpuagent.worker.generative.api_requests import ApiRequest, Passage
from services.gpuagent.worker.generative.generation import Generation, TextModel, TextRequest
from services.gpuagent.worker.generative.prompts import Prompt
from services.gpuagent.worker.generative.server_answers import Progress, ServerAnswers
from services.gpuagent.worker.generative.server_listing import served_model
from services.gpuagent.worker.generative.server_load import ServerLoad, parse
from services.gpuagent.worker.generative.server_sleep import ServerSleep
from services.gpuagent.worker.model_port import ModelFailed
from services.kit import proxies
from services.kit.config import ClientTls, GenerativeRuntime, OpenAiRuntime
from services.kit.errors import FailedPrecondition, InvalidArgument, Unavailable
from services.kit.json_bounds import parsed_answer
from services.kit.rpc.certificates import client_context
from services.kit.telemetry import logs

PLATFORM: Final = "openai"

_REQUEST: Final = aiohttp.ClientTimeout(total=5.0)
_GENERATE: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0)  # deadlines end it
_MOST_LINE_BYTES: Final = 2**20
_MOST_ERROR_BYTES: Final = 64 * 2**10
_MOST_SMALL_BYTES: Final = 4 * 2**20
_MOST_ANSWER_BYTES: Final = 256 * 2**20
_DEFAULT_CONTEXT_TOKENS: Final = 131_072
"""Context of a server that states none: the server refuses longer prompts itself."""

_FULL_KV_CACHE: Final = 0.95

_CHARGE_PERIOD_S: Final = 0.25
_LATE: Final = 1000
"""Priority of requests that can wait: in vLLM the lowest number is first, and 0 the default."""
_WEIGHT: Final = 0.2
"""Of an answer in the usual time of a token."""

_OK: Final = 200
_NO_SUCH_PATH: Final = frozenset({404, 405, 501})
_EVENTS: Final = "text/event-stream"
_NO_EVENTS: Final = frozenset({"application/json", "application/problem+json", "text/html"})

_log = logs.get("worker")


@asynccontextmanager
async def openai_model(
    spec: WorkerSpec, runtime: OpenAiRuntime, report: Callable[[ServerLoad], None]
) -> AsyncIterator[OpenAiModel]:
    """Start the server where it has to be, and wait until it has the model ready.

    Args:
        spec: Who the worker is.
        runtime: The server, and defaults of requests.
        report: Called with the server's load when it is read.

    Raises:
        RuntimeError: The server ended, or its certificates cannot be read.
    """
    async with started(spec, runtime) as server:
        scheme = "http" if runtime.tls is None else "https"
        url = f"{scheme}://{server.address}"
        async with session(url, server.api_key, runtime.tls) as http:
            through = proxies.note(url)
            model = OpenAiModel(http, server, runtime, report=report, through=through)
            await server.until_ready(model.ready)
            await model.load_adapters(runtime.adapters)
            await model.read_kv_tokens()
            yield model


def session(url: str, api_key: str, tls: ClientTls | None = None) -> aiohttp.ClientSession:
    """Return HTTP to a server.

    Raises:
        RuntimeError: Its certificates cannot be read.
    """
    return aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0, ssl=_context(tls)),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        read_bufsize=_MOST_LINE_BYTES,
        proxy=_proxy(url),
    )


class OpenAiModel(TextModel):
    """A server's language model as a `TextModel`.

    Args:
        http: HTTP to the server.
        server: Its address, and its process where the worker started it.
        runtime: As of `openai_model`.
        platform: Name of the engine.
        report: As of `openai_model`.
        through: Words for errors: the proxy before it.
    """

    def __init__(  # noqa: PLR0913 - its connection, its place and its names
        self,
        http: aiohttp.ClientSession,
        server: Server,
        runtime: OpenAiRuntime | GenerativeRuntime,
        platform: str = PLATFORM,
        *,
        report: Callable[[ServerLoad], None] = lambda _: None,
        through: str = "",
    ) -> None:
        super().__init__(platform, runtime)
        self._session = http
        self._server = server
        self._name = runtime.model_name if isinstance(runtime, OpenAiRuntime) else ""
        self.server = runtime.address if isinstance(runtime, OpenAiRuntime) else ""
        self._ranks = isinstance(runtime, OpenAiRuntime) and runtime.has_priorities
        self._report = report
        self._answers = ServerAnswers(server.name)
        self._through = through
        self._uncounted = False
        self._in_flight = 0
        self._token_s = 0.0
        rest = runtime.sleep if isinstance(runtime, OpenAiRuntime) else None
        self._sleep = ServerSleep(http, rest, time.monotonic)
        self._room = asyncio.Event()
        self._room.set()
        self._has_metrics = True

    # ---- the server ----------------------------------------------------------------------------

    async def ready(self) -> bool:
        """Return whether the server has the model ready; its name and context are known then."""
        try:
            async with self._session.get("/health", timeout=_REQUEST) as health:
                if health.status != _OK and health.status not in _NO_SUCH_PATH:
                    return False
            async with self._session.get("/v1/models", timeout=_REQUEST) as answer:
                found = None
                if answer.status == _OK:
                    found = served_model(await _small(answer), self._name)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return False
        if found is None:
            return False
        self._name, self.adapters = found.name, found.adapters
        if not self.context_tokens:
            self.context_tokens = found.context_tokens or _DEFAULT_CONTEXT_TOKENS
        return True

    async def load_adapters(self, wanted: Mapping[str, str]) -> None:
        """Load adapters into the server that it does not list.

        Args:
            wanted: Paths by name.

        Raises:
            RuntimeError: It does not.
        """
        for name, path in wanted.items():
            if name in self.adapters:
                continue
            body = {"lora_name": name, "lora_path": path}
            try:
                async with self._session.post("/v1/load_lora_adapter", json=body) as answer:
                    said = (await answer.content.read(_MOST_ERROR_BYTES)).decode(errors="replace")
            except (aiohttp.ClientError, TimeoutError) as error:
                answer, said = None, str(error)
            if answer is None or answer.status != _OK:
                status = answer.status if answer is not None else "nothing"
                raise RuntimeError(
                    f"runtime.adapters.{name}: {self._server.name} answered {status}: {said[:500]}"
                    " (vLLM loads adapters with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING)"
                )
            self.adapters += (name,)

    async def failure(self) -> str:
        """Wait until the server has ended, or says several times that it is not ready."""

        async def alive() -> bool:
            await self._sleep.doze(lambda: self._in_flight)
            await self._read_load()
            return await self.ready()

        return await self._server.failure(alive, self._name)

    async def room(self) -> None:
        """Wait until the server does not queue requests, or has none of this worker's."""
        await self._room.wait()

    async def read_kv_tokens(self) -> None:
        """Find out how many tokens the server's KV cache has room for, where it states that."""
        self.kv_tokens = (await self._load()).kv_tokens

    async def _load(self) -> ServerLoad:
        try:
            async with self._session.get("/metrics", timeout=_REQUEST) as answer:
                self._has_metrics = answer.status not in _NO_SUCH_PATH
                stated = (await _small(answer)).decode(errors="replace")
                load = parse(stated) if answer.status == _OK else ServerLoad()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            load = ServerLoad()
        if not self._has_metrics:
            _log.warning("the model's server exposes no metrics: its queue is not known")
        return load

    async def _read_load(self) -> None:
        if not self._has_metrics:
            return
        load = await self._load()
        self._report(load)
        if load.waiting or load.kv_cache_ratio > _FULL_KV_CACHE:
            if self._in_flight:
                self._room.clear()
        else:
            self._room.set()

    # ---- text ----------------------------------------------------------------------------------

    async def generate(self, wanted: TextRequest, generation: Generation) -> str:
        """Generate an answer; see `TextModel`.

        Raises:
            InvalidArgument: The server refuses the request; the message is the server's.
            ResourceExhausted: The server is full, and says when it will not be.
            Unavailable: The server could not be reached, or ended: another instance may do better.
            ModelFailed: The server failed on the request, or answered what is no stream of text.
        """
        self._in_flight += 1
        reading = asyncio.create_task(self._call(wanted, generation), name="worker.openai")
        generation.when_stopped(reading.cancel)
        try:
            return await reading
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return ""
        except InvalidArgument as error:
            if isinstance(wanted, Prompt) and "CONTEXT" in error.reason:
                raise InvalidArgument.at("raw_input_contents[0]", error.message) from None
            raise
        finally:
            if token_s := generation.usage.token_s:
                self._token_s += _WEIGHT * (token_s - self._token_s) if self._token_s else token_s
            self._in_flight -= 1
            if not self._in_flight:
                self._room.set()

    async def _call(self, wanted: TextRequest, generation: Generation) -> str:
        progress = Progress(self._answers, self._server.name, wanted.prompt_bytes)
        streams = isinstance(wanted, Prompt) or wanted.streams
        await self._sleep.rouse()
        try:
            async with (
                self._server.answering(),
                self._session.post(
                    wanted.path,
                    data=self._ranked(self.document(wanted), generation),
                    headers={
                        "Content-Type": "application/json",
                        "Accept": _EVENTS if streams else "application/json",
                    },
                    timeout=_GENERATE,
                    allow_redirects=False,
                ) as answer,
            ):
                if answer.status != _OK or (streams and answer.content_type in _NO_EVENTS):
                    said = await answer.content.read(_MOST_ERROR_BYTES)
                    raise self._answers.refusal(
                        answer.status, answer.headers, said, passes=isinstance(wanted, ApiRequest)
                    )
                if isinstance(wanted, Prompt):
                    await self._follow(answer.content, progress, generation)
                elif streams:
                    await self._pass_on(wanted, answer.content, progress, generation)
                else:
                    await self._whole(answer.content, progress, generation)
        except (aiohttp.ClientError, TimeoutError) as error:
            why = error or type(error).__name__
            raise Unavailable(f"{self._server.name}: {why}{self._through}") from error
        if not progress.counted and not self._uncounted and streams:
            self._uncounted = True
            _log.warning("the model's server states no usage: tokens are counted here")
        return progress.reason or "stop"

    def document(self, wanted: TextRequest) -> bytes:
        """Return the body for the server.

        Raises:
            Unavailable: The adapter that is named is not loaded here.
        """
        return wanted.document(self._named(wanted))

    def _ranked(self, document: bytes, generation: Generation) -> bytes:
        """Return a body whose request comes after others where it can wait and the server ranks.

        The last of two members of one name counts: the client's own says nothing here.
        """
        if not (self._ranks and generation.waiting):
            return document
        return b'%b,"priority":%d}' % (document[:-1], _LATE)

    def _named(self, wanted: TextRequest) -> str:
        """Return the server's name of what a request names: the model, or an adapter of it.

        Raises:
            Unavailable: The adapter is not loaded here; another instance may have it.
        """
        adapter = wanted.adapter if isinstance(wanted, ApiRequest) else ""
        if adapter and adapter not in (self._name, *self.adapters):
            raise Unavailable(f"{self._server.name} has no adapter {adapter!r} loaded")
        return adapter or self._name

    async def _follow(
        self, content: aiohttp.StreamReader, progress: Progress, generation: Generation
    ) -> None:
        """Take the text of a stream."""
        async for event in self._answers.events(content):
            if event.chunk is not None:
                _, *said = progress.take(event.chunk)
                generation.take(progress.step(*(each.encode(errors="replace") for each in said)))
        if not progress.reason:
            raise self._broken_off()

    async def _pass_on(
        self,
        wanted: ApiRequest,
        content: aiohttp.StreamReader,
        progress: Progress,
        generation: Generation,
    ) -> None:
        """Pass the events of a stream on."""
        passage = Passage(wanted, progress)
        async for event in self._answers.events(content):
            generation.take(progress.step(passage.take(event)))
        if not progress.reason and not passage.complete:
            raise self._broken_off()
        generation.tail = passage.rest()

    async def _whole(
        self, content: aiohttp.StreamReader, progress: Progress, generation: Generation
    ) -> None:
        """Pass an answer on that comes at once; until then, tokens are taken to come as usual."""
        body = bytearray()
        async with self._charging(generation):
            async for piece in content.iter_any():
                body += piece
                if len(body) > _MOST_ANSWER_BYTES:
                    raise ModelFailed(
                        f"{self._server.name} answered more than {_MOST_ANSWER_BYTES} bytes"
                    )
        try:
            document = parsed_answer(body)
        except ValueError:  # what it says of its tokens is not known
            document = None
        progress.whole(document, len(body))
        generation.take_whole(progress.step(bytes(body)))

    @asynccontextmanager
    async def _charging(self, generation: Generation) -> AsyncIterator[None]:
        """Charge for tokens at the usual pace while the block waits for all of them."""

        async def charge() -> None:
            waited_s = 0.0
            while True:
                await asyncio.sleep(_CHARGE_PERIOD_S)
                waited_s += _CHARGE_PERIOD_S
                generation.expect(int(waited_s / self._token_s))

        charging = asyncio.create_task(charge(), name="worker.charge") if self._token_s else None
        try:
            yield
        finally:
            if charging is not None:
                charging.cancel()

    def _broken_off(self) -> Unavailable:
        return Unavailable(f"{self._server.name} ended the answer before its end")


async def _small(answer: aiohttp.ClientResponse) -> bytes:
    """Return an answer other than a text.

    Raises:
        ValueError: It is too large for one.
    """
    found = bytearray()
    async for piece in answer.content.iter_any():
        found += piece
        if len(found) > _MOST_SMALL_BYTES:
            raise ValueError(f"more than {_MOST_SMALL_BYTES} bytes")
    return bytes(found)


def _proxy(url: str) -> str | None:
    try:
        return proxies.proxy_for(url)
    except FailedPrecondition as error:
        raise RuntimeError(str(error)) from error


def _context(tls: ClientTls | None) -> ssl.SSLContext | bool:
    if tls is None:
        return True  # aiohttp's default, which plain HTTP does not use
    try:
        return client_context(tls)
    except FailedPrecondition as error:
        raise RuntimeError(f"runtime.{error}") from error
