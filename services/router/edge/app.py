"""The router's HTTP address: the Open Inference Protocol and the OpenAI API on the same engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from inference import grpc_service_pb2 as pb
from services.kit.config import Router
from services.kit.errors import NotFound, Unimplemented
from services.kit.http.client import HttpClient
from services.kit.http.context import HttpContext
from services.kit.http.guard import Guard
from services.kit.http.server import serving_http
from services.kit.http.statuses import NO_SUCH_METHOD
from services.kit.rpc import Access, caller
from services.kit.rpc.client_identity import client_of
from services.router.edge.batches import Batches
from services.router.edge.calls import LINES, Calls
from services.router.edge.description import Description
from services.router.edge.inference_protocol import InferenceProtocol, error_form
from services.router.edge.lines import Lines
from services.router.edge.openai_api import OpenAiApi
from services.router.edge.openai_messages import error_form as openai_form
from services.router.edge.probes import Probes
from services.router.runtime.engine import Engine
from services.router.servicer import UNCHARGED, InferenceServicer

if TYPE_CHECKING:
    from services.kit.config import Tls

_MIB: Final = 2**20


@asynccontextmanager
async def edge(  # noqa: PLR0913 - one value per decision of the composition root
    settings: Router,
    engine: Engine,
    servicer: InferenceServicer,
    *,
    tls: Tls | None,
    access: Access | None,
    tokens: bool,
    batches: HttpClient | None,
    grace_s: float,
    registry: CollectorRegistry,
) -> AsyncIterator[None]:
    """Serve HTTP at `router.http_listen` while the block runs; nothing where that is empty.

    Args:
        settings: The router's section of the deployment file.
        engine: Answers.
        servicer: Answers all calls but inference.
        tls: Certificate of the server; None: plaintext.
        access: Who may call what; None: everybody everything.
        tokens: Callers may show a token instead of a certificate.
        batches: Connections to the batch service; None: there is none.
        grace_s: Time that requests in flight have to end, s.
        registry: The router's metrics.
    """
    if not settings.http_listen:
        yield
        return
    guard = Guard(
        access,
        max_requests=settings.max_requests + settings.waiting.max_requests,
        max_request_bytes=settings.max_request_bytes,
        free_bytes=int((settings.max_queue_mib + settings.waiting.max_mib) * _MIB),
        charged=_charged(engine),
    )
    calls = Calls(engine, settings.max_request_bytes)
    app = web.Application()
    tensors = InferenceProtocol(servicer, calls, guard)
    texts = OpenAiApi(engine, calls, guard, settings.max_request_bytes)
    routes = [*tensors.routes(), *texts.routes(), *Lines(tensors, texts, guard).routes()]
    if batches is not None:
        app.add_routes(Batches(batches, guard).routes())
    version = servicer.ServerMetadata(pb.ServerMetadataRequest()).version
    routes += Probes(engine, version, registry, guard).routes()
    app.add_routes([*routes, *Description(routes, servicer, guard).routes()])
    for path in ("/v1/{path:.*}", "/{path:.*}"):
        form = openai_form if path.startswith("/v1") else error_form
        app.router.add_route("*", path, guard.around("unknown HTTP path", _ANY_RPC, form, _unknown))
    async with serving_http(
        settings.http_listen,
        app,
        tls=tls,
        certificate_required=not tokens,
        max_connections=settings.max_connections,
        by_host=access is None,
        grace_s=grace_s,
        shared_port=settings.processes > 1,
    ):
        yield


def _charged(engine: Engine) -> Callable[[str, HttpContext], AbstractContextManager[None]]:
    """Return what counts a call against its client's quota while a block runs."""

    def charged(rpc: str, context: HttpContext) -> AbstractContextManager[None]:
        if rpc.rpartition("/")[2] in UNCHARGED or context.path == LINES:  # each line counts
            return nullcontext()
        return engine.charged(partial(client_of, context, caller()))

    return charged


_ANY_RPC: Final = "/inference.GRPCInferenceService/ServerLive"


async def _unknown(request: web.Request) -> web.StreamResponse:
    allowed = {"OPTIONS"}
    for resource in request.app.router.resources():
        allowed |= (await resource.resolve(request))[1] - {"*"}
    known = ", ".join(sorted(allowed))
    if len(allowed) > 1 and request.method == "OPTIONS":
        return web.Response(status=204, headers={"Allow": known})
    if len(allowed) > 1:
        error = Unimplemented(
            f"{request.method}: must be one of {known} at {request.path}", reason=NO_SUCH_METHOD
        )
        error.trailers = (("Allow", known),)
        raise error
    raise NotFound(f"no {request.method} {request.path}; see docs/http.md", reason="NO_SUCH_PATH")
