"""The OpenAI API over the deployment's language models: /v1, streaming by server-sent events.

Source: OpenAI, "API reference"; WHATWG, "HTML", section 9.2 (server-sent events).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
from services.kit.api_requests import GENERATING, PATHS, document, prompt_bytes
from services.kit.errors import InvalidArgument, ServiceError
from services.kit.http.guard import Guard
from services.kit.off_loop import off_loop
from services.router.core.accounting.receipts import Answer
from services.router.edge import event_stream, openai_messages
from services.router.edge.calls import LINES, Calls, Seen
from services.router.edge.documents import checked
from services.router.edge.openai_messages import Completion, error_form
from services.router.frontend import messages
from services.router.runtime.engine import Engine

PASSES_ON: Final = frozenset({"llama.cpp", "openai"})
"""Platforms of models that a server of the OpenAI API runs: it gets requests as they came."""

FLEX: Final = "flex"
"""The service tier of requests that can wait."""

_COMPLETIONS: Final = "/v1/completions"
_RPC: Final = "/inference.GRPCInferenceService/"


class OpenAiApi:
    """The handlers of /v1.

    Args:
        engine: Knows the models.
        calls: Has requests answered.
        guard: Around every handler.
        most_bytes: Largest body.
    """

    def __init__(self, engine: Engine, calls: Calls, guard: Guard, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._engine = engine
        self._calls = calls
        self._guard = guard
        self._began_s = int(time.time())

    def routes(self) -> Iterator[web.RouteDef]:
        """Yield the routes."""
        yield web.get("/v1/models", self._guarded("GET /v1/models", "RepositoryIndex", self._list))
        model = "/v1/models/{model}"
        yield web.get(model, self._guarded(f"GET {model}", "ModelMetadata", self._model))
        for path in sorted(PATHS):
            handler = self._guarded(f"POST {path}", "ModelStreamInfer", self._answering(path))
            yield web.post(path, handler)

    def _guarded(self, method: str, rpc: str, handler: Handler) -> Handler:
        return self._guard.around(method, f"{_RPC}{rpc}", error_form, handler)

    # ---- models --------------------------------------------------------------------------------

    async def _list(self, _: web.Request) -> web.Response:
        data = [self._described(name) for name in self._names()]
        for name in self._names():
            adapters = sorted(self._engine.registry.model(name).adapters)
            data += [self._described(each, name) for each in adapters]
        served = sorted(dispatcher.routes.model for dispatcher in self._engine.registry)
        return _json({"object": "list", "data": data, "models": served})

    def _names(self) -> list[str]:
        names = sorted(dispatcher.routes.model for dispatcher in self._engine.registry)
        return [name for name in names if self._generates(name)]

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        model, adapter = self._resolved(name)
        self._engine.registry.model(model)
        self._engine.hello(model)
        described = self._described(name, model if adapter else None)
        ready = {"name": name, "ready": True}  # KServe's
        return _json({**(described if self._generates(model) else {}), **ready})

    def _described(self, name: str, parent: str | None = None) -> dict[str, Any]:
        found = {"id": name, "object": "model", "created": self._began_s, "owned_by": "cinquefoil"}
        return found if parent is None else {**found, "parent": parent}

    def _generates(self, name: str) -> bool:
        hello = self._engine.hellos.get(name)
        return hello is not None and _takes_text(messages.metadata(name, hello))

    def _check(self, name: str) -> pb.ModelMetadataResponse:
        """Return a language model's metadata.

        Raises:
            ServiceError: There is no such model, none of its instances has reported its tensors
                yet, or it generates no text.
        """
        self._engine.registry.model(name)
        found = messages.metadata(name, self._engine.hello(name))
        if not _takes_text(found):
            raise InvalidArgument.at(
                "model",
                f"{name!r} generates no text; its tensors go to /v2/models/{name}/infer",
                reason="NOT_A_LANGUAGE_MODEL",
            )
        return found

    # ---- requests ------------------------------------------------------------------------------

    def _answering(self, path: str) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            async with self._guard.body(request) as body:
                return await self.answer(request, path, body)

        handler.__doc__ = f"Answer {path.removeprefix('/v1')[1:].replace('/', ' ')}."
        return handler

    def _read(self, body: bytes | bytearray) -> tuple[dict[str, Any], int]:
        """Return a body as it is read, and how long its prompt is."""
        found = document(body, self._most_bytes)
        return found, prompt_bytes(found, len(body))

    async def answer(
        self, request: web.Request, path: str, body: bytes | bytearray
    ) -> web.StreamResponse:
        """Answer a request of the API.

        Args:
            request: The HTTP request that it came with.
            path: Path of the API, such as "/v1/completions".
            body: Its body.

        Raises:
            ServiceError: It is wrong, or failed.
        """
        found, length = await off_loop(len(body), partial(self._read, body))
        if request.path == LINES and found.get("stream"):
            raise InvalidArgument.at("stream", "must be false: the call has other requests as well")
        model, adapter = self._resolved(self._named(found))
        platform = self._check(model).platform
        if platform in PASSES_ON:
            pack = partial(openai_messages.passed, found, body, model, path)
            message = await off_loop(len(body), pack)
            seen = Seen(length, adapter, found.get("service_tier") == FLEX)
            infer = partial(self._calls.infer, request, message, seen=seen)
            if found.get("stream") is True and path in GENERATING:
                events = _Passed(self._plan)
                return await event_stream.stream(request, infer, events, self._whole)
            return await self._as_it_is(await infer())
        if path != _COMPLETIONS:
            raise InvalidArgument.at(
                "model",
                f"the server of {model!r} ({platform or 'unknown platform'}) takes prompts only;"
                f" use {_COMPLETIONS}",
                reason="NOT_A_CHAT_MODEL",
            )
        return await self._complete(request, {**found, "model": model})

    def _named(self, found: Mapping[str, Any]) -> str:
        """Return the model that a request names; the only one, where it names none.

        Raises:
            InvalidArgument: It names none, and there are several, or none.
        """
        name = found.get("model")
        if isinstance(name, str) and name:
            return name
        if name:
            raise InvalidArgument.at("model", "must be a string")
        names = self._names()
        if len(names) != 1:
            allowed = ", ".join(names) or "none is ready yet"
            raise InvalidArgument.at("model", f"required; there are: {allowed}")
        return names[0]

    def _resolved(self, name: str) -> tuple[str, str]:
        """Return the model that a name stands for, and the adapter of it; "": none."""
        if self._engine.registry.find(name) is None:
            for dispatcher in self._engine.registry:
                if name in dispatcher.adapters:
                    return dispatcher.routes.model, name
        return name, ""

    async def _whole(self, answer: Answer) -> web.Response | None:
        """Return an answer that came at once where events were requested; None: it has events."""
        content = openai_messages.content(pb.ModelInferResponse.FromString(answer.body))
        return await self._as_it_is(answer) if content.startswith(b"{") else None

    async def _as_it_is(self, answer: Answer) -> web.Response:
        def written() -> bytes:
            response = pb.ModelInferResponse.FromString(answer.body)
            receipt = openai_messages.receipt(response, self._plan())
            return openai_messages.with_receipt(openai_messages.content(response), receipt)

        content = await off_loop(len(answer.body), written)
        return web.Response(
            body=content, headers=self._calls.receipt(answer), content_type="application/json"
        )

    async def _complete(self, request: web.Request, found: Mapping[str, Any]) -> web.StreamResponse:
        """Answer with the continuation of a text by a model of tensors."""
        wanted = checked(Completion, found)
        message, text = openai_messages.infer_request(wanted), _Text(wanted)
        seen = Seen(flex=wanted.service_tier == FLEX)
        infer = partial(self._calls.infer, request, message, seen=seen)
        if wanted.stream:
            return await event_stream.stream(request, infer, _Chunks(text, self._plan))
        answer = await infer()
        response = pb.ModelInferResponse.FromString(answer.body)
        usage = openai_messages.usage(response, self._plan())
        return _json(text.answer(response, usage), self._calls.receipt(answer))

    def _plan(self) -> int:
        return self._engine.registry.table.plan_version


class _Passed:
    """Passes a server's events on: `event_stream.Events`.

    Args:
        plan: Returns the version of the plan.
    """

    def __init__(self, plan: Callable[[], int]) -> None:
        self._plan = plan

    def part(self, response: bytes) -> bytes:
        return openai_messages.content(pb.ModelInferResponse.FromString(response))

    def end(self, answer: Answer) -> Iterator[bytes]:
        last = pb.ModelInferResponse.FromString(answer.body)
        events, receipt = openai_messages.content(last), openai_messages.receipt(last, self._plan())
        if events.startswith(b"{"):  # it came at once, after the headers had left
            whole = openai_messages.with_receipt(events, receipt)
            events = b"data: %b\n\ndata: [DONE]\n\n" % whole.replace(b"\n", b" ")
            yield events
        else:
            yield openai_messages.ending(events, receipt)

    def failure(self, error: ServiceError) -> bytes:
        return _event(error_form(error))


class _Text:
    """Writes the continuation of a text by a model of tensors. Args: wanted (the request)."""

    def __init__(self, wanted: Completion) -> None:
        self.wanted = wanted
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": wanted.model,
        }

    def answer(self, response: pb.ModelInferResponse, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return a whole answer."""
        choice = _choice(response, openai_messages.finish_reason(response))
        return {**self._head, "choices": [choice], "usage": usage}

    def piece(self, response: pb.ModelInferResponse, reason: str | None = None) -> dict[str, Any]:
        """Return a part with text; with a reason: the last one."""
        return self.chunk([_choice(response, reason)])

    def chunk(
        self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return a part; `usage` is null in all but the last, where it is wanted."""
        counted = {"usage": usage} if self.wanted.stream_options.include_usage else {}
        return {**self._head, "choices": choices, **counted}


def _choice(response: pb.ModelInferResponse, reason: str | None) -> dict[str, Any]:
    text = openai_messages.content(response).decode(errors="replace")
    return {"index": 0, "finish_reason": reason, "logprobs": None, "text": text}


class _Chunks:
    """Writes an answer as chunks: `event_stream.Events`.

    Args:
        text: Writes them.
        plan: Returns the version of the plan.
    """

    def __init__(self, text: _Text, plan: Callable[[], int]) -> None:
        self._text = text
        self._plan = plan

    def part(self, response: bytes) -> bytes:
        return _event(self._text.piece(pb.ModelInferResponse.FromString(response)))

    def end(self, answer: Answer) -> Iterator[bytes]:
        last = pb.ModelInferResponse.FromString(answer.body)
        yield _event(self._text.piece(last, openai_messages.finish_reason(last)))
        if self._text.wanted.stream_options.include_usage:
            yield _event(self._text.chunk([], openai_messages.usage(last, self._plan())))
        yield b"data: [DONE]\n\n"

    def failure(self, error: ServiceError) -> bytes:
        return _event(error_form(error))


def _takes_text(found: pb.ModelMetadataResponse) -> bool:
    inputs = {(tensor.name, tensor.datatype) for tensor in found.inputs}
    outputs = {(tensor.name, tensor.datatype) for tensor in found.outputs}
    return ("text_input", "BYTES") in inputs and ("text_output", "BYTES") in outputs


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(document)


def _json(document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=to_json(document), headers=headers, content_type="application/json")
