"""A gRPC server: bind, report health and reflection, serve, drain."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, cast

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from services.kit import h2
from services.kit.descriptors import check_room
from services.kit.errors import FailedPrecondition
from services.kit.h2 import Limits
from services.kit.net import is_loopback, split_address
from services.kit.rpc.access import Access
from services.kit.rpc.certificates import CertificateFiles, server_context
from services.kit.rpc.channel import MAX_MESSAGE_BYTES, keepalive
from services.kit.rpc.guard import GuardInterceptor, admission, guard
from services.kit.rpc.health import READINESS, HealthServicer, add_health
from services.kit.rpc.health_list_messages import pool_with_list
from services.kit.telemetry import logs

if TYPE_CHECKING:
    from services.kit.config import Tls

_log = logs.get("rpc")

ADDRESS_TAKEN = "ADDRESS_TAKEN"
"""Reason of the error of a server whose address is in use."""

_COMPRESSIONS = {
    "none": grpc.Compression.NoCompression,
    "deflate": grpc.Compression.Deflate,
    "gzip": grpc.Compression.Gzip,
}

Register = Callable[[grpc.aio.Server], None]

Transport = Literal["own", "grpcio"]
"""Transport of calls: `services.kit.h2`, or gRPC's C core (decision 32 says where which)."""

Bind = Callable[[str, "Tls | None"], int]
"""Binds an address, with TLS or in plaintext, and returns the port."""


_UNCOMPRESSED: Final = 1
"""The set of algorithms that has identity alone."""

_MOST_STREAMS: Final = 100
"""Calls at a time on one connection of gRPC's C core, which counts them before it knows callers."""

_USUAL = Limits()
_PROBED = Limits(message_bytes=4096, connections=64, streams=8, calls=64)


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server.

    Attributes:
        port: Port that it listens on.
        health: Health of the services; "" is the whole server.
        services: Full names of the registered services.
    """

    port: int
    health: HealthServicer
    services: tuple[str, ...]

    async def set_ready(self, *, ready: bool) -> None:
        """Report every service and the whole server as SERVING or NOT_SERVING."""
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if ready else status.NOT_SERVING
        self.health.set(dict.fromkeys(("", READINESS, *self.services), value))


@asynccontextmanager
async def serving(  # noqa: PLR0913 - one value per decision of the composition root
    address: str,
    register: Register,
    services: Sequence[str],
    *,
    tls: Tls | None = None,
    access: Access | None = None,
    token_address: str = "",
    grace_s: float = 5.0,
    ready: bool = True,
    limits: Limits = _USUAL,
    compression: Literal["none", "deflate", "gzip"] = "none",
    shared_port: bool = False,
    transport: Transport = "grpcio",
    probes: str = "",
    health_servicer: HealthServicer | None = None,
) -> AsyncIterator[Serving]:
    """Run a server with health, reflection and mapped errors while the block runs.

    Leaving the block drains: health is NOT_SERVING, new calls are refused, calls in flight have
    `grace_s` to end.

    Args:
        address: "host:port"; port 0 picks a free one.
        register: Adds the servicers.
        services: Full names of the services that `register` adds, for health and reflection.
        tls: Certificate of the server, read again when its file changes; None: plaintext.
        access: Who may call what; None: everybody everything.
        token_address: A second "host:port", where callers show a token and need no certificate.
        grace_s: Time that calls in flight have to end, s.
        ready: Whether to report SERVING at once; otherwise call `Serving.set_ready`.
        limits: What callers can take of the server.
        compression: Compression of responses, if the caller accepts it.
        shared_port: Whether other processes listen on the port, too: the kernel gives each
            connection to one of them. Otherwise a second server on the port is refused.
        transport: What carries the calls.
        probes: A second "host:port", where the health alone is answered, in plaintext and to every
            caller: who keeps processes alive has no certificate. Empty: none.
        health_servicer: The health, where others look at it, too. None: its own.

    Raises:
        FailedPrecondition: The address cannot be bound (reason ADDRESS_TAKEN), or the certificate
            cannot be read.
    """
    if access is None and not is_loopback(address):
        _log.warning("every caller that reaches this address may do everything", address=address)
    check_room(address, limits.connections)
    make = partial(_own if transport == "own" else _grpcio, shared=shared_port)
    server, bind = make(access, limits, compression)
    register(server)
    servicer = health_servicer or HealthServicer()
    servicer.begin()
    add_health(servicer, server)
    names = (*services, health.SERVICE_NAME)
    if access is None or access.reflection:
        shown = (*names, reflection.SERVICE_NAME)
        pool = pool_with_list((*shown, error_details_pb2.ErrorInfo.DESCRIPTOR.full_name))
        add_ServerReflectionServicer_to_server(  # type: ignore[no-untyped-call]
            reflection.aio.ReflectionServicer(shown, pool=pool), server
        )
    host, _ = split_address(address)
    prober, bind_prober = make(None, _PROBED, "none") if probes else (None, None)
    try:
        # Inside the try: a cancellation during start must stop the server, too.
        port = bind(address, tls)
        if token_address:
            shown_tls = tls and tls.model_copy(update={"require_client_certificate": False})
            bind(token_address, shown_tls)
        if prober is not None and bind_prober is not None:
            add_health(servicer, prober)
            bind_prober(probes, None)
            await prober.start()
        running = Serving(port, servicer, tuple(names))
        await running.set_ready(ready=ready)  # before the first call
        await server.start()
        _log.info("serving", address=f"{host}:{port}", services=list(services))
        yield running
    finally:
        servicer.drain()
        await server.stop(grace_s)
        if prober is not None:
            await prober.stop(0)


def _own(
    access: Access | None, limits: Limits, compression: str, *, shared: bool
) -> tuple[grpc.aio.Server, Bind]:
    """Return a server of `services.kit.h2`, and the function that binds it."""
    encoding = "" if compression == "none" else compression
    server = h2.Server(
        lambda name, handler: guard(name, handler, access),
        limits,
        encoding,
        None if access is None else admission(access),
    )

    def bind(address: str, tls: Tls | None) -> int:
        context = None if tls is None else server_context(tls)
        try:
            return server.listen(address, context, shared=shared)
        except OSError as error:
            raise _taken(address) from error

    return cast("grpc.aio.Server", server), bind


def _grpcio(
    access: Access | None, limits: Limits, compression: str, *, shared: bool
) -> tuple[grpc.aio.Server, Bind]:
    """Return a server of gRPC's C core, and the function that binds it."""
    options = (
        ("grpc.max_send_message_length", max(limits.message_bytes, MAX_MESSAGE_BYTES)),
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_concurrent_streams", min(limits.streams, _MOST_STREAMS)),
        ("grpc.server_handshake_timeout_ms", round(limits.handshake_s * 1e3)),
        ("grpc.max_connection_idle_ms", round(limits.idle_s * 1e3)),
        ("grpc.max_connection_age_ms", round(limits.age_s * 1e3)),
        ("grpc.so_reuseport", int(shared)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),  # `dial` pings no faster
        *keepalive(limits.dead_after_s),
    )
    if compression == "none":  # else requests are decompressed before their caller is known
        options = (*options, ("grpc.compression_enabled_algorithms_bitset", _UNCOMPRESSED))
    server = grpc.aio.server(
        interceptors=[GuardInterceptor(access, limits.calls)],
        maximum_concurrent_rpcs=limits.calls,
        options=options,
        compression=_COMPRESSIONS[compression],
    )

    def bind(address: str, tls: Tls | None) -> int:
        try:
            if tls is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, _server_credentials(tls))
        except RuntimeError as error:  # grpc raises it for every cause
            raise _taken(address) from error

    return server, bind


def _taken(address: str) -> FailedPrecondition:
    return FailedPrecondition(f"cannot listen at {address}: is it in use?", reason=ADDRESS_TAKEN)


def _server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return credentials that follow their files: the next connection has what these have.

    Raises:
        FailedPrecondition: A file is not given or cannot be read.
    """
    files = CertificateFiles(tls)

    def configuration() -> grpc.ServerCertificateConfiguration:
        if files.pair is None:
            raise FailedPrecondition("tls: a server needs certificate_file and key_file")
        return grpc.ssl_server_certificate_configuration([files.pair], root_certificates=files.ca)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        return configuration() if files.changed() else None  # None: as before

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed),
        require_client_authentication=tls.require_client_certificate,
    )


async def serve_until(stop: asyncio.Event) -> None:
    """Wait for `stop`, SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
