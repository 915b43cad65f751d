"""Paths of vLLM's server that say how it is: load testers and probes look there."""

from collections.abc import Iterator

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry

from services.kit.errors import Unavailable
from services.kit.http.guard import Guard
from services.kit.process.metrics import metrics_page
from services.kit.rpc.access import METRICS
from services.router.edge.openai_messages import error_form
from services.router.runtime.engine import Engine

_RPC = "/inference.GRPCInferenceService/"


class Probes:
    """The handlers.

    Args:
        engine: Knows whether there are instances.
        version: Of the router.
        registry: Its metrics.
        guard: Around every handler.
    """

    def __init__(
        self, engine: Engine, version: str, registry: CollectorRegistry, guard: Guard
    ) -> None:
        self._engine = engine
        self._version = version
        self._registry = registry
        self._guard = guard

    def routes(self) -> Iterator[web.RouteDef]:
        """Yield the routes."""
        for path, rpc, handler in (
            ("/health", f"{_RPC}ServerReady", self._health),
            ("/version", f"{_RPC}ServerMetadata", self._its_version),
            ("/metrics", METRICS, metrics_page(self._registry)),
        ):
            yield web.get(path, self._guarded(path, rpc, handler))

    def _guarded(self, path: str, rpc: str, handler: Handler) -> Handler:
        return self._guard.around(f"GET {path}", rpc, error_form, handler)

    async def _health(self, _: web.Request) -> web.Response:
        """Answer whether every model has an instance that takes requests."""
        if not self._engine.registry.ready:
            raise Unavailable("not every model has an instance that takes requests")
        return web.Response()

    async def _its_version(self, _: web.Request) -> web.Response:
        """Return the version."""
        return web.json_response({"version": self._version})
