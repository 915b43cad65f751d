"""The Open Inference Protocol over HTTP, with Triton's extensions: /v2.

Everything but inference is the gRPC servicer's answer, written as JSON.
Source: KServe, "Open Inference Protocol (V2)"; Triton, "HTTP/REST and GRPC Protocol".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web
from google.protobuf.message import Message
from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
from services.kit.errors import InvalidArgument, ServiceError
from services.router.edge import tensor_json
from services.router.edge.calls import Calls
from services.router.edge.documents import parsed_object, plain
from services.router.edge.guard import Guard, Handler
from services.router.servicer import InferenceServicer

_RPC: Final = "/inference.GRPCInferenceService/"
_SIZE: Final = "Inference-Header-Content-Length"
_VERSIONED: Final = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")

Fields = Mapping[str, Any]
_Settings = pb.TraceSettingRequest | pb.LogSettingsRequest


def error_form(error: ServiceError) -> Mapping[str, object]:
    """Return the body of an error."""
    return {"error": error.message or error.status}


class _Call(NamedTuple):
    """A call other than inference.

    Attributes:
        verb: HTTP method.
        path: Its path.
        rpc: Name of the gRPC method that answers.
        request: Makes its request of the path's variables and the body.
        document: Makes JSON of its response.
    """

    verb: str
    path: str
    rpc: str
    request: Callable[[Fields], Message]
    document: Callable[[Any], Any] = plain


def _named(message: Callable[..., Message]) -> Callable[[Fields], Message]:
    return lambda given: message(name=given.get("model", ""), version=given.get("version", ""))


def _region(message: Callable[..., Message]) -> Callable[[Fields], Message]:
    return lambda given: message(name=given.get("region", ""))


def _settings(message: Callable[..., _Settings]) -> Callable[[Fields], Message]:
    """Return the message with the settings that a body would change, by name: all are refused."""

    def request(given: Fields) -> Message:
        made = message(**{"model_name": given["model"]} if "model" in given else {})
        for name in given.keys() - {"model"}:
            made.settings[name].SetInParent()
        return made

    return request


def _chosen(response: Any) -> Any:
    """Return settings without the names of their types."""
    return {
        name: next(iter(plain(value).values()), None) for name, value in response.settings.items()
    }


def _calls() -> Iterator[_Call]:
    yield _Call("GET", "/v2", "ServerMetadata", lambda _: pb.ServerMetadataRequest())
    yield _Call("GET", "/v2/health/live", "ServerLive", lambda _: pb.ServerLiveRequest())
    yield _Call("GET", "/v2/health/ready", "ServerReady", lambda _: pb.ServerReadyRequest())
    yield _Call("GET", "/v2/models/stats", "ModelStatistics", _named(pb.ModelStatisticsRequest))
    for model in _VERSIONED:
        yield _Call("GET", model, "ModelMetadata", _named(pb.ModelMetadataRequest))
        yield _Call("GET", f"{model}/ready", "ModelReady", _named(pb.ModelReadyRequest))
        yield _Call(
            *("GET", f"{model}/config", "ModelConfig", _named(pb.ModelConfigRequest)),
            lambda response: plain(response.config),
        )
        yield _Call("GET", f"{model}/stats", "ModelStatistics", _named(pb.ModelStatisticsRequest))
    yield _Call(
        *("POST", "/v2/repository/index", "RepositoryIndex"),
        lambda given: pb.RepositoryIndexRequest(ready=given.get("ready") is True),
        lambda response: plain(response)["models"],
    )
    repository = "/v2/repository/models/{model}"
    yield _Call(
        *("POST", f"{repository}/load", "RepositoryModelLoad"),
        lambda given: pb.RepositoryModelLoadRequest(model_name=given["model"]),
    )
    yield _Call(
        *("POST", f"{repository}/unload", "RepositoryModelUnload"),
        lambda given: pb.RepositoryModelUnloadRequest(model_name=given["model"]),
    )
    for kind in ("System", "Cuda"):
        rpc, base = f"{kind}SharedMemory", f"/v2/{kind.lower()}sharedmemory"
        for path in (base, f"{base}/region/{{region}}"):
            for act in ("Status", "Register", "Unregister"):
                yield _Call(
                    "GET" if act == "Status" else "POST",
                    f"{path}/{act.lower()}",
                    f"{rpc}{act}",
                    _region(getattr(pb, f"{rpc}{act}Request")),
                    lambda response: list(plain(response).get("regions", ())),
                )
    for verb in ("GET", "POST"):
        for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting"):
            yield _Call(verb, path, "TraceSetting", _settings(pb.TraceSettingRequest), _chosen)
        yield _Call(verb, "/v2/logging", "LogSettings", _settings(pb.LogSettingsRequest), _chosen)


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
        for call in _calls():
            handler = self._guarded(call.verb, call.path, call.rpc, self._handler(call))
            yield web.route(call.verb, call.path, handler)

    def _guarded(self, verb: str, path: str, rpc: str, handler: Handler) -> Handler:
        return self._guard.around(f"{verb} {path}", f"{_RPC}{rpc}", error_form, handler)

    async def _infer(self, request: web.Request) -> web.Response:
        async with self._guard.body(request) as body:
            wanted, after = tensor_json.read(body, _json_bytes(request))
            given = request.match_info
            message = tensor_json.message(wanted, given["model"], given.get("version", ""), after)
            del body, after  # the message has all of it
            answer = await self._calls.infer(request, message)
        content, json_bytes = tensor_json.answer(answer.body, wanted)
        headers = dict(self._calls.receipt(answer))
        if json_bytes is None:
            return web.Response(body=content, headers=headers, content_type="application/json")
        headers[_SIZE] = str(json_bytes)
        return web.Response(body=content, headers=headers)  # application/octet-stream

    def _handler(self, call: _Call) -> Handler:
        answer = getattr(self._servicer, call.rpc)

        async def handler(request: web.Request) -> web.Response:
            given: dict[str, Any] = {}
            if request.body_exists:
                async with self._guard.body(request) as body:
                    given = parsed_object(body)
            response = answer(call.request(given | request.match_info))
            healthy = not isinstance(response, _HEALTH) or response.ready
            return web.Response(
                body=to_json(call.document(response)),
                status=200 if healthy else 503,
                content_type="application/json",
            )

        return handler


_HEALTH: Final = (pb.ServerReadyResponse, pb.ModelReadyResponse)


def _json_bytes(request: web.Request) -> int | None:
    given = request.headers.get(_SIZE)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit()):
        raise InvalidArgument.at(_SIZE, f"must be a number of bytes, got {given!r}")
    return int(given)
