"""The Prometheus endpoint."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from cryptography import x509
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Gauge,
    Info,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from services.kit.config import Tls
from services.kit.errors import ServiceError
from services.kit.http.context import HttpContext
from services.kit.http.server import serving_http
from services.kit.http.slow_clients import sent
from services.kit.http.statuses import refusal
from services.kit.rpc.access import METRICS, Access
from services.kit.telemetry.export import pushed

# One more series for each counter and histogram, which no dashboard reads.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's

BUILD: Final = Info("cinquefoil_build", "Version of Cinquefoil.")
BUILD.info({"version": version("cinquefoil")})

CERTIFICATE_END: Final = Gauge(
    "cinquefoil_certificate_end_timestamp_seconds",
    "End of the service's certificate, as its file has it; 0: it has none that can be read.",
)

_MAX_CONNECTIONS: Final = 16
_SILENT_S: Final = 5.0
"""Time after which an idle connection is closed, s."""


@asynccontextmanager
async def exposed(  # noqa: PLR0913 - one value per decision of the composition root
    address: str,
    collectors: Iterable[Collector] = (),
    registry: CollectorRegistry = REGISTRY,
    *,
    service: str = "",
    tls: Tls | None = None,
    access: Access | None = None,
    ready: Callable[[], bool] | None = None,
) -> AsyncIterator[int]:
    """Serve `/metrics`, `/livez` and `/readyz` while the block runs.

    Args:
        address: "host:port"; port 0 picks a free one. Empty: do not serve.
        collectors: Collectors of the registry while the block runs, served or not.
        registry: Registry to expose.
        service: Name under which OpenTelemetry's collector gets them too, where the environment
            names one (`services.kit.telemetry.export`); empty: it does not.
        tls: Certificate of the server, read again when its file changes; None: plaintext.
        access: Callers that may read; None: all.
        ready: Returns whether the service serves: `/readyz` answers 200 then, else 503; None: there
            is no such page.

    Yields:
        The port, or 0 where nothing is served.

    Raises:
        FailedPrecondition: The address cannot be bound, or the certificate cannot be read.
        NotInstalled: The environment names a collector, and the libraries are missing.
    """
    async with AsyncExitStack() as stack:
        for collector in collectors:
            registry.register(collector)
            stack.callback(registry.unregister, collector)
        if tls is not None:
            CERTIFICATE_END.set_function(partial(_end_s, tls))
        if service:
            stack.enter_context(pushed(service, registry))
        if not address:
            yield 0
            return
        serving = serving_http(
            address,
            _pages(registry, access, ready),
            what="metrics",
            tls=tls,
            max_connections=_MAX_CONNECTIONS,
            by_host=access is None,
            idle_s=_SILENT_S,
            grace_s=0.0,
        )
        yield await stack.enter_async_context(serving)


def _end_s(tls: Tls) -> float:
    """Return the end of a certificate, s since 1970; it is read again at each scrape."""
    try:
        text = tls.certificate_file.read_bytes() if tls.certificate_file else b""
        return x509.load_pem_x509_certificate(text).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return 0.0


def metrics_page(registry: CollectorRegistry) -> Handler:
    """Return a handler that answers with a registry's metrics."""

    async def metrics(request: web.Request) -> web.Response:
        """Return the metrics in Prometheus' format."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        names = request.query.getall("name[]", ())
        wanted = registry.restricted_registry(names) if names else registry
        # In a thread: thousands of series take longer than a request may wait.
        page = await asyncio.to_thread(encode, wanted)
        return web.Response(body=page, headers={"Content-Type": content_type})

    return metrics


def _pages(
    registry: CollectorRegistry, access: Access | None, ready: Callable[[], bool] | None
) -> web.Application:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if access is not None:
                access.admit(METRICS, HttpContext(request))
        except ServiceError as error:
            return refusal(error, lambda error: {"error": error.message})
        response = await handler(request)
        response.enable_compression()
        return await sent(request, response)

    async def health(request: web.Request) -> web.Response:
        well = request.path == "/livez" or ready is None or ready()
        return web.Response(
            text="ok\n" if well else "not serving\n",
            status=200 if well else 503,
            headers={"Cache-Control": "no-store"},
        )

    app = web.Application(middlewares=[guarded])
    app.router.add_get("/metrics", metrics_page(registry))
    if ready is not None:
        app.router.add_get("/livez", health)
        app.router.add_get("/readyz", health)
    return app
