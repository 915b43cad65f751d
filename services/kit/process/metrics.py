"""The Prometheus endpoint."""

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Info,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.registry import Collector

from services.kit.config import Tls
from services.kit.errors import FailedPrecondition
from services.kit.net import split_address
from services.kit.rpc.access import Access
from services.kit.rpc.certificates import server_context
from services.kit.telemetry.export import pushed

# One more series for each counter and histogram, which no dashboard reads.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's

BUILD: Final = Info("cinquefoil_build", "Version of Cinquefoil.")
BUILD.info({"version": version("cinquefoil")})

_MOST_SCRAPES: Final = 16
"""Connections at a time; further ones are closed: each takes a thread."""

_SILENT_S: Final = 5.0
"""Time after which a connection that says nothing is closed, s."""


@contextmanager
def exposed(  # noqa: PLR0913 - one value per decision of the composition root
    address: str,
    collectors: Iterable[Collector] = (),
    registry: CollectorRegistry = REGISTRY,
    *,
    service: str = "",
    tls: Tls | None = None,
    access: Access | None = None,
    ready: Callable[[], bool] | None = None,
) -> Iterator[int]:
    """Serve `/metrics`, `/livez` and `/readyz` while the block runs.

    Args:
        address: "host:port"; port 0 picks a free one. Empty: do not serve.
        collectors: Collectors of the registry while the block runs, served or not.
        registry: Registry to expose.
        service: Name under which OpenTelemetry's collector gets them too, where the environment
            names one (`services.kit.telemetry.export`); empty: it does not.
        tls: Certificate of the server, read again when its file changes; None: plaintext.
        access: Who may read, by certificate; None: every caller.
        ready: Returns whether the service serves: `/readyz` answers 200 then, else 503; None: there
            is no such page.

    Yields:
        The port, or 0 where nothing is served.

    Raises:
        FailedPrecondition: The address cannot be bound, or the certificate cannot be read.
        NotInstalled: The environment names a collector, and the libraries are missing.
    """
    with ExitStack() as stack:
        for collector in collectors:
            registry.register(collector)
            stack.callback(registry.unregister, collector)
        if service:
            stack.enter_context(pushed(service, registry))
        if not address:
            yield 0
            return
        app = _pages(make_wsgi_app(registry), ready)
        try:
            server = _Server(address, app, tls, access)
        except OSError as error:
            raise FailedPrecondition(
                f"cannot serve metrics at {address}: {error.strerror}"
            ) from error
        yield stack.enter_context(_served(server))


def _pages(metrics: Any, ready: Callable[[], bool] | None) -> Any:
    """Return the WSGI application of the metrics, `/livez` and `/readyz`."""

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        if path not in {"/livez", "/readyz"} or ready is None:
            return metrics(environ, start_response)
        well = path == "/livez" or ready()
        status = "200 OK" if well else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain"), ("Cache-Control", "no-store")])
        return [b"ok\n" if well else b"not serving\n"]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    """Answers a bounded number of connections at a time, each within a time.

    prometheus_client's own server takes a thread for every connection, for as long as it stays,
    and does TLS handshakes one after another.
    """

    daemon_threads = True

    def __init__(self, address: str, app: Any, tls: Tls | None, access: Access | None) -> None:
        host, port = split_address(address)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.set_app(app)
        self.access = access
        self._free = BoundedSemaphore(_MOST_SCRAPES)
        self._context = None if tls is None else server_context(tls, "http/1.1")

    def get_request(self) -> Any:
        """Accept a connection; its handshake is left to its thread, which has a time for it."""
        connection, address = super().get_request()
        if self._context is None:
            return connection, address
        return self._context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        ), address

    def server_bind(self) -> None:
        """Bind, without looking up this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection where too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a connection that breaks off, or is no TLS; it is its peer's business."""


class _Handler(WSGIRequestHandler):
    """One connection."""

    timeout = _SILENT_S
    server: _Server

    def handle(self) -> None:
        """Answer a caller that may read."""
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.do_handshake()
            access = self.server.access
            if access is not None and not access.sees(_names(self.connection)):
                return
        super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log nothing: scrapes come every few seconds."""


def _names(connection: ssl.SSLSocket) -> tuple[str, ...]:
    """Return what a verified certificate calls its bearer."""
    shown: Any = connection.getpeercert() or {}
    return tuple(name for _, name in shown.get("subjectAltName", ()))


@contextmanager
def _served(server: _Server) -> Iterator[int]:
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        _stop(server)
        thread.join()


def _stop(server: _Server) -> None:
    """Stop at once, for this may run on the event loop.

    `shutdown` alone waits until the server polls its socket, twice a second or on a connection.
    """
    stopping = Thread(target=server.shutdown, name="metrics.stop")
    stopping.start()
    with suppress(OSError):
        socket.create_connection((server.server_name, server.server_port), timeout=1).close()
    stopping.join()
    server.server_close()
