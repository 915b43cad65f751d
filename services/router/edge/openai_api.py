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
from services.kit.errors import InvalidArgument, ServiceError
from services.router.core.accounting.receipts import Answer
from services.router.edge import event_stream, openai_messages
from services.router.edge.calls import Calls
from services.router.edge.documents import off_loop, parsed
from services.router.edge.guard import Guard
from services.router.edge.openai_messages import Chat, Completion, error_form
from services.router.frontend import messages
from services.router.runtime.engine import Engine

CHAT_PLATFORMS: Final = frozenset({"llama.cpp", "openai"})
"""Platforms of models that apply their chat template to `messages`, in the worker or its server."""

_RPC: Final = "/inference.GRPCInferenceService/"


class OpenAiApi:
    """The handlers of /v1.

    Args:
        engine: Knows the models.
        calls: Has requests answered.
        guard: Around every handler.
    """

    def __init__(self, engine: Engine, calls: Calls, guard: Guard) -> None:
        self._engine = engine
        self._calls = calls
        self._guard = guard
        self._began_s = int(time.time())

    def routes(self) -> Iterator[web.RouteDef]:
        """Yield the routes."""
        yield web.get("/v1/models", self._guarded("GET /v1/models", "RepositoryIndex", self._list))
        model = "/v1/models/{model}"
        yield web.get(model, self._guarded(f"GET {model}", "ModelMetadata", self._model))
        for path, kind in (("/v1/completions", _Text), ("/v1/chat/completions", _ChatText)):
            handler = self._guarded(f"POST {path}", "ModelStreamInfer", self._answering(kind))
            yield web.post(path, handler)

    def _guarded(self, method: str, rpc: str, handler: Handler) -> Handler:
        return self._guard.around(method, f"{_RPC}{rpc}", error_form, handler)

    # ---- models --------------------------------------------------------------------------------

    async def _list(self, _: web.Request) -> web.Response:
        names = sorted(dispatcher.routes.model for dispatcher in self._engine.registry)
        data = [self._described(name) for name in names if self._generates(name)]
        return _json({"object": "list", "data": data})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        self._check(name)
        return _json(self._described(name))

    def _described(self, name: str) -> dict[str, Any]:
        created = self._began_s
        return {"id": name, "object": "model", "created": created, "owned_by": "cinquefoil"}

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

    # ---- text ----------------------------------------------------------------------------------

    def _answering(self, kind: type[_Text]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            async with self._guard.body(request) as body:
                wanted = await off_loop(len(body), partial(parsed, kind.document, body))
                platform = self._check(wanted.model).platform
                if isinstance(wanted, Chat) and platform not in CHAT_PLATFORMS:
                    raise InvalidArgument.at(
                        "model",
                        f"the server of {wanted.model!r} ({platform or 'unknown platform'}) takes"
                        " prompts, no conversations; use /v1/completions",
                        reason="NOT_A_CHAT_MODEL",
                    )
                message = openai_messages.infer_request(wanted)
                text = kind(wanted)
                if wanted.stream:
                    infer = partial(self._calls.infer, request, message)
                    return await event_stream.stream(request, infer, _Chunks(text, self._plan))
                answer = await self._calls.infer(request, message)
            response = pb.ModelInferResponse.FromString(answer.body)
            usage = openai_messages.usage(response, self._plan())
            return _json(text.answer(response, usage), self._calls.receipt(answer))

        return handler

    def _plan(self) -> int:
        return self._engine.registry.table.plan_version


class _Text:
    """Writes the answer to one request: the continuation of a text.

    Attributes:
        document: Type of the request.
        prefix: Of identifiers.
        whole, part: `object` of an answer, and of a part of one.
        wanted: The request.
    """

    document: type[Completion | Chat] = Completion
    prefix, whole, part = "cmpl-", "text_completion", "text_completion"

    def __init__(self, wanted: Completion | Chat) -> None:
        self.wanted = wanted
        self._head = {
            "id": f"{self.prefix}{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": wanted.model,
        }
        self._first = True

    def answer(self, response: pb.ModelInferResponse, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return a whole answer."""
        text = self._message(openai_messages.generated(response))
        choices = [_choice(text, openai_messages.finish_reason(response))]
        return {**self._head, "object": self.whole, "choices": choices, "usage": usage}

    def piece(self, response: pb.ModelInferResponse, reason: str | None = None) -> dict[str, Any]:
        """Return a part with text; with a reason: the last one."""
        text = self._delta(openai_messages.generated(response))
        return self.chunk([_choice(text, reason)])

    def chunk(
        self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return a part; `usage` is null in all but the last, where it is wanted."""
        counted = {"usage": usage} if self.wanted.stream_options.include_usage else {}
        return {**self._head, "object": self.part, "choices": choices, **counted}

    def _message(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}


class _ChatText(_Text):
    """Writes the next message of a conversation."""

    document = Chat
    prefix, whole, part = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def _message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def _delta(self, text: str) -> dict[str, Any]:
        first, self._first = self._first, False
        role = {"role": "assistant"} if first else {}
        return {"delta": role | ({"content": text} if text or first else {})}


def _choice(text: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "finish_reason": reason, "logprobs": None, **text}


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
