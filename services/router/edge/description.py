"""The handlers that describe the HTTP address: OpenAPI, as a document and as a page.

Paths are those of MLServer (/v2/docs) and of FastAPI, which KServe uses (/openapi.json).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from aiohttp import web
from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
from services.kit.http.guard import Guard
from services.router.edge import openapi
from services.router.edge.inference_protocol import error_form
from services.router.servicer import InferenceServicer

_RPC: Final = "/inference.GRPCInferenceService/"
_MODEL: Final = "/v2/models/{model}"


class Description:
    """The handlers.

    Args:
        described: The routes to describe.
        servicer: Knows the models.
        guard: Around every handler.
    """

    def __init__(
        self, described: Sequence[web.RouteDef], servicer: InferenceServicer, guard: Guard
    ) -> None:
        self._described = described
        self._servicer = servicer
        self._guard = guard

    def routes(self) -> Iterator[web.RouteDef]:
        """Yield the routes."""
        for path, whole in (
            ("/openapi.json", self._document),
            ("/v2/docs/dataplane.json", self._document),
            ("/v2/docs", self._page),
        ):
            yield self._route(path, "ServerMetadata", whole)
        for model in (_MODEL, f"{_MODEL}/versions/{{version}}"):
            yield self._route(f"{model}/docs/dataplane.json", "ModelMetadata", self._document)
            yield self._route(f"{model}/docs", "ModelMetadata", self._page)

    def _route(self, path: str, rpc: str, handler: Any) -> web.RouteDef:
        return web.get(path, self._guard.around(f"GET {path}", f"{_RPC}{rpc}", error_form, handler))

    async def _document(self, request: web.Request) -> web.Response:
        """Return the OpenAPI document."""
        return web.Response(body=to_json(self._of(request)), content_type="application/json")

    async def _page(self, request: web.Request) -> web.Response:
        """Return the OpenAPI document as a page."""
        headers = {"Content-Security-Policy": "default-src 'none'"}
        text = openapi.page(self._of(request))
        return web.Response(text=text, content_type="text/html", headers=headers)

    @cached_property
    def _whole(self) -> Mapping[str, Any]:
        version = self._servicer.ServerMetadata(pb.ServerMetadataRequest()).version
        return openapi.document(self._described, version)

    def _of(self, request: web.Request) -> Mapping[str, Any]:
        model = request.match_info.get("model", "")
        if not model:
            return self._whole
        which = {"name": model, "version": request.match_info.get("version", "")}
        self._servicer.ModelMetadata(pb.ModelMetadataRequest(**which))  # it exists
        return openapi.of_model(self._whole, model)
