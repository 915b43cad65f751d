"""Client channels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import grpc

from services.kit.net import split_address
from services.kit.proxies import DIRECT
from services.kit.rpc.certificates import CertificateFiles, server_name
from services.kit.rpc.checked_relay import CheckedRelay
from services.kit.rpc.failover import FailoverChannel
from services.kit.rpc.tracing_channel import TracedChannel

if TYPE_CHECKING:
    from services.kit.config import ExpectedServer, Tls

MAX_MESSAGE_BYTES = 64 * 2**20

DEAD_AFTER_S = 10.0
"""Time within which a peer that vanished (a lost node, a stopped process) is detected, s."""

_OPTIONS = (
    # grpc's own reconnect delay grows to 2 minutes by default: our peers restart in seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Minimum timeout of an attempt: a busy server handles a thousand handshakes in turn.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # One connection per channel, so that a closed channel really closes it.
    ("grpc.use_local_subchannel_pool", 1),
)


SWITCH_AFTER_S = 4.0
"""`DEAD_AFTER_S` of one server of several: the next one waits, s."""


def dial(  # noqa: PLR0913 - what a connection is made of
    address: str | Sequence[str],
    tls: Tls | None = None,
    expected: ExpectedServer | None = None,
    *,
    dead_after_s: float | None = DEAD_AFTER_S,
    message_bytes: int = MAX_MESSAGE_BYTES,
    direct: bool = True,
) -> grpc.aio.Channel:
    """Return a channel to `address` that propagates traces; plaintext unless `tls` is given.

    Args:
        address: "host:port"; several: the channel leads to the first that serves, once entered.
        tls: Authority to trust, and the client's certificate; read again when its files change.
            Calls that begin then are made over a new connection; those in flight go on.
        expected: Role that the server's certificate must have, checked once the channel is
            entered; None: any.
        dead_after_s: Time after which calls to a silent peer end with UNAVAILABLE, s, >= 2: our
            servers accept a ping a second. None: no pings, for other servers, which may treat
            them as an attack.
        message_bytes: Largest message in either direction.
        direct: Proxies of the environment are ignored, as between the suite's own services.

    Raises:
        FailedPrecondition: A file of `tls` cannot be read.
    """
    if not isinstance(address, str) and len(address) > 1:
        one = partial(
            dial,
            tls=tls,
            expected=expected,
            dead_after_s=SWITCH_AFTER_S,
            message_bytes=message_bytes,
        )
        channels = [cast(TracedChannel, one(each)) for each in address]
        return cast(grpc.aio.Channel, FailoverChannel(address, channels))
    if not isinstance(address, str):
        address = address[0]
    options: tuple[tuple[str, int | str], ...] = (
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_receive_message_length", message_bytes),
        *_OPTIONS,
        *((DIRECT,) if direct else ()),
        *(() if dead_after_s is None else keepalive(dead_after_s)),
    )
    if tls is None:
        plain = grpc.aio.insecure_channel(address, options=options)
        return cast(grpc.aio.Channel, TracedChannel(lambda: plain))
    if expected is not None:
        return cast(grpc.aio.Channel, _checked(address, tls, expected, options))
    if (name := server_name(tls, address)) != split_address(address)[0]:
        options = (*options, ("grpc.ssl_target_name_override", name))
    files = CertificateFiles(tls)

    def secure() -> grpc.aio.Channel:
        key, chain = files.pair or (None, None)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=files.ca, private_key=key, certificate_chain=chain
        )
        return grpc.aio.secure_channel(address, credentials, options=options)

    # A channel of certificates before lives as long as its calls.
    return cast(grpc.aio.Channel, TracedChannel(files.following(secure)))


def _checked(
    address: str, tls: Tls, expected: ExpectedServer, options: Sequence[tuple[str, int | str]]
) -> TracedChannel:
    """Return a channel whose connections lead to a server of the role only."""
    files, relay = CertificateFiles(tls), CheckedRelay(address, tls, expected)
    options = (*options, ("grpc.default_authority", address))
    made = files.following(lambda: grpc.aio.insecure_channel(relay.target, options=options))
    return TracedChannel(made, relay)


def keepalive(dead_after_s: float) -> tuple[tuple[str, int], ...]:
    """Return the options of either end: ping after half of the time, wait for the other half."""
    half_ms = round(dead_after_s * 500)
    return (
        ("grpc.keepalive_time_ms", half_ms),
        ("grpc.keepalive_timeout_ms", half_ms),
        # grpc ignores the option above: a ping's timeout, 60 s, decides (grpc pull request 39239).
        ("grpc.http2.ping_timeout_ms", half_ms),
        # By default an idle stream is pinged only twice (grpc issue 25722).
        ("grpc.http2.max_pings_without_data", 0),
    )
