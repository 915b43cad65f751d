"""The Prometheus endpoint."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from socketserver import BaseServer
from threading import Thread

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from services.kit.net import split_address


@contextmanager
def exposed(
    address: str,
    collectors: Iterable[Collector] = (),
    registry: CollectorRegistry = REGISTRY,
) -> Iterator[int]:
    """Serve `/metrics` while the block runs.

    Args:
        address: "host:port"; port 0 picks a free one. Empty: do not serve.
        collectors: Collectors of the registry while the block runs, served or not.
        registry: Registry to expose.

    Yields:
        The port, or 0 where nothing is served.
    """
    with ExitStack() as stack:
        for collector in collectors:
            registry.register(collector)
            stack.callback(registry.unregister, collector)
        yield stack.enter_context(_served(address, registry)) if address else 0


@contextmanager
def _served(address: str, registry: CollectorRegistry) -> Iterator[int]:
    host, port = split_address(address)
    server, thread = start_http_server(port, addr=host, registry=registry)
    try:
        yield server.server_port
    finally:
        _stop(server, (host, server.server_port))
        thread.join()


def _stop(server: BaseServer, address: tuple[str, int]) -> None:
    """Stop at once, for this may run on the event loop.

    `shutdown` alone waits until the server polls its socket, twice a second or on a connection.
    """
    stopping = Thread(target=server.shutdown, name="metrics.stop")
    stopping.start()
    with suppress(OSError):
        socket.create_connection(address, timeout=1).close()
    stopping.join()
    server.server_close()
