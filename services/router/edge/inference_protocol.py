"""The Open Inference Protocol over HTTP, with Triton's extensions, and KServe's first protocol.

Everything but inference is the gRPC servicer's answer, written as JSON.
Source: KServe, "Open Inference Protocol (V2)"; Triton, "HTTP/REST and GRPC Protocol".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from google.protobuf.message_factory import GetMessageClass
from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
from services.kit.api_requests import document
from services.kit.errors import InvalidArgument, ServiceError
from services.kit.http.guard import Guard
from services.kit.http.statuses import UNKNOWN_MEDIA_TYPE
from services.kit.off_loop import off_loop
from services.router.core.accounting.receipts import Answer
from services.router.edge import event_stream, generate, predict, tensor_json
from services.router.edge.calls import Calls
from services.router.edge.documents import parsed_object, plain
from services.router.servicer import INFERENCE, InferenceServicer

_RPC: Final = "/inference.GRPCInferenceService/"
_SIZE: Final = "Inference-Header-Content-Length"
_MAX_DIGITS: Final = 19
_INPUTS: Final = re.compile(rb'"inputs"\s*+:\s*+\[\s*+\{')
_JSON_TYPES: Final = frozenset(
    {
        "application/json",
        "application/octet-stream",  # with tensors behind the document
        "application/x-www-form-urlencoded",  # curl's default
        "text/json",
        "text/plain",
    }
)
_MODEL: Final = "/v2/models/{model}"
_VERSIONED: Final = (_MODEL, f"{_MODEL}/versions/{{version}}")
_PREDICT: Final = "/v1/models/{model}:predict"

_CALLS: Final = (
    ("GET", "/v2", "ServerMetadata"),
    ("GET", "/v2/health/live", "ServerLive"),
    ("GET", "/v2/health/ready", "ServerReady"),
    ("GET", "/v2/models", "RepositoryIndex"),
    ("GET", "/v2/models/stats", "ModelStatistics"),
    *(
        ("GET", f"{model}{path}", rpc)
        for model in _VERSIONED
        for path, rpc in (
            ("", "ModelMetadata"),
            ("/ready", "ModelReady"),
            ("/config", "ModelConfig"),
            ("/stats", "ModelStatistics"),
        )
    ),
    ("POST", "/v2/repository/index", "RepositoryIndex"),
    ("POST", "/v2/repository/models/{model}/load", "RepositoryModelLoad"),
    ("POST", "/v2/repository/models/{model}/unload", "RepositoryModelUnload"),
    *(
        (verb, f"/v2/{kind.lower()}sharedmemory{region}/{act.lower()}", f"{kind}SharedMemory{act}")
        for kind in ("System", "Cuda")
        for region in ("", "/region/{region}")
        for verb, act in (("GET", "Status"), ("POST", "Register"), ("POST", "Unregister"))
    ),
    *(
        (verb, path, rpc)
        for verb in ("GET", "POST")
        for path, rpc in (
            ("/v2/trace/setting", "TraceSetting"),
            (f"{_MODEL}/trace/setting", "TraceSetting"),
            ("/v2/logging", "LogSettings"),
        )
    ),
)
"""HTTP method, path, and the rpc that answers, of each call but inference."""


def error_form(error: ServiceError) -> Mapping[str, object]:
    """Return the body of an error."""
    return {"error": error.message or error.status}


def _request(rpc: str, given: Mapping[str, Any]) -> Any:
    """Return the request of a call, made of the path's variables and the body.

    Settings that a body would change are in it by name: all are refused.
    """
    made: Any = GetMessageClass(INFERENCE.methods_by_name[rpc].input_type)()
    known = made.DESCRIPTOR.fields_by_name
    named = given.get("region" if "SharedMemory" in rpc else "model")
    for field, value in (("name", named), ("model_name", named), ("version", given.get("version"))):
        if field in known and value is not None:
            setattr(made, field, value)
    if "ready" in known:
        made.ready = given.get("ready") is True
    if "settings" in known:
        for name in given.keys() - {"model"}:
            made.settings[name].SetInParent()
    return made


def _document(rpc: str, response: Any, verb: str) -> Any:
    """Return a response as Triton writes it in JSON."""
    match rpc:
        case "ModelConfig":
            return plain(response.config)
        case "RepositoryIndex" if verb == "GET":  # KServe's
            return {"models": [each.name for each in response.models]}
        case "RepositoryIndex":
            return plain(response)["models"]
        case "TraceSetting" | "LogSettings":  # without the names of their types
            values = ((name, plain(value).values()) for name, value in response.settings.items())
            return {name: next(iter(value), None) for name, value in values}
        case _ if "SharedMemory" in rpc:
            return list(plain(response).get("regions", ()))
        case _:
            return plain(response)


class InferenceProtocol:
    """The handlers of /v2, and of KServe's first protocol.

    Args:
        servicer: Answers all calls but inference.
        calls: Has requests answered.
        guard: Around every handler.
    """

    def __init__(self, servicer: InferenceServicer, calls: Calls, guard: Guard) -> None:
        self._servicer = servicer
        self._calls = calls
        self._guard = guard

    def routes(self) -> Iterator[web.RouteDef]:
        """Yield the routes."""
        for model in _VERSIONED:
            for end, rpc, handler in (
                ("/infer", "ModelInfer", self._infer),
                ("/infer_stream", "ModelStreamInfer", self._stream),
                ("/generate", "ModelInfer", self._generate),
                ("/generate_stream", "ModelStreamInfer", self._stream),
            ):
                path = model + end
                yield web.post(path, self._guarded("POST", path, rpc, handler))
        yield web.post(_PREDICT, self._guarded("POST", _PREDICT, "ModelInfer", self._predict))
        for verb, path, rpc in _CALLS:
            guarded = self._guarded(verb, path, rpc, self._handler(rpc))
            yield web.get(path, guarded) if verb == "GET" else web.post(path, guarded)

    def _guarded(self, verb: str, path: str, rpc: str, handler: Handler) -> Handler:
        return self._guard.around(f"{verb} {path}", f"{_RPC}{rpc}", error_form, handler)

    async def _infer(self, request: web.Request) -> web.Response:
        """Answer tensors with tensors."""
        async with self._guard.body(request) as body:
            json_bytes = _json_bytes(request)
            if json_bytes != 0:
                _check_media_type(request)
            size = len(body) if json_bytes is None else json_bytes
            convert = partial(self._converted, body, json_bytes, request.match_info)
            wanted, message = await off_loop(size, convert)
            del body, convert  # the message has all of it
            answer = await self._calls.infer(request, message)
        return await self._tensors(request, answer, wanted)

    async def answer(self, request: web.Request, model: str, body: bytearray) -> web.Response:
        """Answer tensors in JSON with tensors in JSON.

        Args:
            request: The HTTP request that they came with.
            model: The model.
            body: The document.

        Raises:
            ServiceError: It is wrong, or failed.
        """
        convert = partial(self._converted, body, None, {"model": model})
        wanted, message = await off_loop(len(body), convert)
        answer = await self._calls.infer(request, message)
        write = partial(tensor_json.answer, answer.body, wanted)
        content, _ = await off_loop(len(answer.body), write)
        return web.Response(body=content, headers=self._calls.receipt(answer))

    async def _tensors(
        self, request: web.Request, answer: Answer, wanted: tensor_json.InferRequest
    ) -> web.Response:
        write = partial(tensor_json.answer, answer.body, wanted)
        content, json_bytes = await off_loop(len(answer.body), write)
        headers = {**self._calls.receipt(answer), **_event_headers(request, wanted.id)}
        if json_bytes is None:
            return web.Response(body=content, headers=headers, content_type="application/json")
        headers[_SIZE] = str(json_bytes)
        return web.Response(body=content, headers=headers)  # application/octet-stream

    async def _generate(self, request: web.Request) -> web.Response:
        """Answer an object of a model's inputs, such as a text, with one of its outputs."""
        async with self._guard.body(request) as body:
            wanted, message = await self._generation(request, body)
            answer = await self._calls.infer(request, message)
        if wanted is not None:
            return await self._tensors(request, answer, wanted)
        headers = self._calls.receipt(answer)
        content = await off_loop(len(answer.body), partial(generate.answer, answer.body))
        return web.Response(body=content, headers=headers, content_type="application/json")

    async def _predict(self, request: web.Request) -> web.Response:
        """Answer a list of instances with a list of predictions, as KServe's first protocol."""
        async with self._guard.body(request) as body:
            _check_media_type(request)
            described = self._metadata(request.match_info)

            def convert() -> bytes:
                return predict.message(document(body, self._calls.max_request_bytes), described)

            message = await off_loop(len(body), convert)
            answer = await self._calls.infer(request, message)
        content = await off_loop(len(answer.body), partial(predict.answer, answer.body))
        headers = self._calls.receipt(answer)
        return web.Response(body=content, headers=headers, content_type="application/json")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Answer as server-sent events, each an object of outputs; also tensors."""
        async with self._guard.body(request) as body:
            wanted, message = await self._generation(request, body)
            if wanted is not None and wanted.binary:
                raise InvalidArgument.at("outputs", "binary data cannot be sent as events")
            infer = partial(self._calls.infer, request, message)
            return await event_stream.stream(request, infer, _Responses(wanted))

    async def _generation(
        self, request: web.Request, body: bytearray
    ) -> tuple[tensor_json.InferRequest | None, bytes]:
        """Return the message that a request becomes; with its document, where it has tensors."""
        _check_media_type(request)
        described = self._metadata(request.match_info)
        tensors = not any(each.name == "inputs" for each in described.inputs)

        def convert() -> tuple[tensor_json.InferRequest | None, bytes]:
            if tensors and _INPUTS.search(body):  # MLServer's
                return self._converted(body, None, request.match_info)
            given = parsed_object(body)
            return None, generate.message(given, described, request.match_info.get("version", ""))

        return await off_loop(len(body), convert)

    def _metadata(self, given: Mapping[str, str]) -> pb.ModelMetadataResponse:
        which = pb.ModelMetadataRequest(name=given["model"], version=given.get("version", ""))
        return self._servicer.ModelMetadata(which)

    def _converted(
        self, body: bytearray, json_bytes: int | None, given: Mapping[str, str]
    ) -> tuple[tensor_json.InferRequest, bytes]:
        """Return a request's document, and the message that it becomes."""
        name, version = given["model"], given.get("version", "")
        if json_bytes == 0:
            return tensor_json.raw_message(body, self._metadata(given), version)
        wanted, tensors = tensor_json.read(body, json_bytes)
        return wanted, tensor_json.message(wanted, name, version, tensors)

    def _handler(self, rpc: str) -> Handler:
        answer = getattr(self._servicer, rpc)

        async def handler(request: web.Request) -> web.Response:
            given: dict[str, Any] = {}
            if request.body_exists:
                _check_media_type(request)
                async with self._guard.body(request) as body:
                    given = await off_loop(len(body), partial(parsed_object, body))
            response = answer(_request(rpc, given | request.match_info))
            healthy = not isinstance(response, _HEALTH) or response.ready
            return web.Response(
                body=to_json(_document(rpc, response, request.method)),
                status=200 if healthy else 503,
                content_type="application/json",
            )

        handler.__doc__ = answer.__doc__
        return handler


class _Responses:
    """Writes each response of an answer as an event: `event_stream.Events`.

    Args:
        wanted: Document of the request, where it has tensors.
    """

    def __init__(self, wanted: tensor_json.InferRequest | None) -> None:
        self._wanted = wanted

    def part(self, response: bytes) -> bytes:
        try:
            if self._wanted is None:
                return b"data: %b\n\n" % generate.answer(response)
            return b"data: %b\n\n" % tensor_json.answer(response, self._wanted)[0]
        except ServiceError as error:  # an output without a form in JSON
            return self.failure(error)

    def end(self, answer: Answer) -> Iterator[bytes]:
        if generate.has_outputs(answer.body):
            yield self.part(answer.body)

    def failure(self, error: ServiceError) -> bytes:
        return b"data: %b\n\n" % to_json(error_form(error))


def _check_media_type(request: web.Request) -> None:
    """Refuse a body that is said to be no JSON; what clients send by default passes.

    Raises:
        InvalidArgument: It is of another type.
    """
    if "Content-Type" not in request.headers:
        return
    kind = request.content_type
    if kind not in _JSON_TYPES and not kind.endswith("+json"):
        raise InvalidArgument.at(
            "Content-Type", f"must be application/json, got {kind:.64}", reason=UNKNOWN_MEDIA_TYPE
        )


def _event_headers(request: web.Request, request_id: str) -> Mapping[str, str]:
    """Return MLServer's headers of an answer: those of a CloudEvent."""
    model = request.match_info["model"]
    identified = {"Ce-Id": request_id, "Ce-Requestid": request_id} if request_id.isascii() else {}
    return {
        "Ce-Specversion": "0.3",
        "Ce-Source": "io.seldon.serving.deployment.cinquefoil",
        "Ce-Type": "io.seldon.serving.inference.response",
        "Ce-Modelid": model,
        "Ce-Endpoint": model,
        **(identified if request_id and request_id.isprintable() else {}),
    }


_HEALTH: Final = (pb.ServerReadyResponse, pb.ModelReadyResponse)


def _json_bytes(request: web.Request) -> int | None:
    given = request.headers.get(_SIZE)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _MAX_DIGITS):
        raise InvalidArgument.at(_SIZE, f"must be a number of bytes, got {given[:64]!r}")
    return int(given)
