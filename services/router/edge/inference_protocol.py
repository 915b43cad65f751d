"""The Open Inference Protocol over HTTP, with Triton's extensions: /v2.

Everything but inference is the gRPC servicer's answer, written as JSON.
Source: KServe, "Open Inference Protocol (V2)"; Triton, "HTTP/REST and GRPC Protocol".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from google.protobuf.message_factory import GetMessageClass
from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
from services.kit.errors import InvalidArgument, ServiceError
from services.router.edge import tensor_json
from services.router.edge.calls import Calls
from services.router.edge.documents import off_loop, parsed_object, plain
from services.router.edge.guard import Guard
from services.router.servicer import INFERENCE, InferenceServicer

_RPC: Final = "/inference.GRPCInferenceService/"
_SIZE: Final = "Inference-Header-Content-Length"
_MAX_DIGITS: Final = 19
_MODEL: Final = "/v2/models/{model}"
_VERSIONED: Final = (_MODEL, f"{_MODEL}/versions/{{version}}")

_CALLS: Final = (
    ("GET", "/v2", "ServerMetadata"),
    ("GET", "/v2/health/live", "ServerLive"),
    ("GET", "/v2/health/ready", "ServerReady"),
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


def _document(rpc: str, response: Any) -> Any:
    """Return a response as Triton writes it in JSON."""
    match rpc:
        case "ModelConfig":
            return plain(response.config)
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
    """The handlers of /v2.

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
        for path in _VERSIONED:
            yield web.post(
                f"{path}/infer", self._guarded("POST", f"{path}/infer", "ModelInfer", self._infer)
            )
        for verb, path, rpc in _CALLS:
            handler = self._guarded(verb, path, rpc, self._handler(rpc))
            yield web.route(verb, path, handler)

    def _guarded(self, verb: str, path: str, rpc: str, handler: Handler) -> Handler:
        return self._guard.around(f"{verb} {path}", f"{_RPC}{rpc}", error_form, handler)

    async def _infer(self, request: web.Request) -> web.Response:
        async with self._guard.body(request) as body:
            json_bytes = _json_bytes(request)
            size = len(body) if json_bytes is None else json_bytes
            convert = partial(_converted, body, json_bytes, request.match_info)
            wanted, message = await off_loop(size, convert)
            del body, convert  # the message has all of it
            answer = await self._calls.infer(request, message)
        write = partial(tensor_json.answer, answer.body, wanted)
        content, json_bytes = await off_loop(len(answer.body), write)
        headers = dict(self._calls.receipt(answer))
        if json_bytes is None:
            return web.Response(body=content, headers=headers, content_type="application/json")
        headers[_SIZE] = str(json_bytes)
        return web.Response(body=content, headers=headers)  # application/octet-stream

    def _handler(self, rpc: str) -> Handler:
        answer = getattr(self._servicer, rpc)

        async def handler(request: web.Request) -> web.Response:
            given: dict[str, Any] = {}
            if request.body_exists:
                async with self._guard.body(request) as body:
                    given = await off_loop(len(body), partial(parsed_object, body))
            response = answer(_request(rpc, given | request.match_info))
            healthy = not isinstance(response, _HEALTH) or response.ready
            return web.Response(
                body=to_json(_document(rpc, response)),
                status=200 if healthy else 503,
                content_type="application/json",
            )

        return handler


def _converted(
    body: bytearray, json_bytes: int | None, given: Mapping[str, str]
) -> tuple[tensor_json.InferRequest, bytes]:
    """Return a request's document, and the message that it becomes."""
    wanted, tensors = tensor_json.read(body, json_bytes)
    name, version = given["model"], given.get("version", "")
    return wanted, tensor_json.message(wanted, name, version, tensors)


_HEALTH: Final = (pb.ServerReadyResponse, pb.ModelReadyResponse)


def _json_bytes(request: web.Request) -> int | None:
    given = request.headers.get(_SIZE)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _MAX_DIGITS):
        raise InvalidArgument.at(_SIZE, f"must be a number of bytes, got {given[:64]!r}")
    return int(given)
