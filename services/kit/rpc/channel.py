"""Client channels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from services.kit.rpc.tracing_channel import TracedChannel

if TYPE_CHECKING:
    from services.kit.config import Tls

MAX_MESSAGE_BYTES = 64 * 2**20

DEAD_AFTER_S = 10.0
"""A peer that vanished without a word (a lost node, a stopped process) is noticed within this."""

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # grpc's own reconnect delay grows to 2 minutes by default: our peers restart in seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # One connection per channel, so that a closed channel really closes it.
    ("grpc.use_local_subchannel_pool", 1),
)


def dial(
    address: str, tls: Tls | None = None, *, dead_after_s: float | None = DEAD_AFTER_S
) -> grpc.aio.Channel:
    """Return a channel to `address` that passes traces on; plaintext unless `tls` is given.

    Args:
        address: "host:port".
        tls: Authority to trust, and the certificate to show where the server asks for one.
        dead_after_s: Time in which a peer must show life while a call is open, s, >= 2: our
            servers take a ping a second. Then its calls end with UNAVAILABLE. None: a server that
            is not ours, and may take pings for an attack; it is never asked.
    """
    options = _OPTIONS if dead_after_s is None else (*_OPTIONS, *keepalive(dead_after_s))
    if tls is None:
        return TracedChannel(grpc.aio.insecure_channel(address, options=options))
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca_file),
        private_key=_read(tls.key_file),
        certificate_chain=_read(tls.certificate_file),
    )
    return TracedChannel(grpc.aio.secure_channel(address, credentials, options=options))


def keepalive(dead_after_s: float) -> tuple[tuple[str, int], ...]:
    """Return the options of either end: ask after half of the time, wait for the other half."""
    half_ms = round(dead_after_s * 500)
    return (
        ("grpc.keepalive_time_ms", half_ms),
        ("grpc.keepalive_timeout_ms", half_ms),
        # Which grpc does not heed: a ping's own timeout, 60 s, decides (grpc pull request 39239).
        ("grpc.http2.ping_timeout_ms", half_ms),
        # By default an idle stream is asked twice, and never again (grpc issue 25722).
        ("grpc.http2.max_pings_without_data", 0),
    )


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
