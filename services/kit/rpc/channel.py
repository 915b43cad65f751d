"""Client channels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from services.kit.rpc.traced import TracedChannel

if TYPE_CHECKING:
    from services.kit.deployment import Tls

MAX_MESSAGE_BYTES = 64 * 2**20

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanished without a FIN (a lost node) is noticed within 20 s.
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # grpc's own reconnect delay grows to 2 minutes by default: our peers restart in seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # One connection per channel, so that a closed channel really closes it.
    ("grpc.use_local_subchannel_pool", 1),
)


def dial(address: str, tls: Tls | None = None) -> grpc.aio.Channel:
    """Return a channel to `address` that passes traces on; plaintext unless `tls` is given.

    Args:
        address: "host:port".
        tls: Authority to trust, and the certificate to show where the server asks for one.
    """
    if tls is None:
        return TracedChannel(grpc.aio.insecure_channel(address, options=_OPTIONS))
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca_file),
        private_key=_read(tls.key_file),
        certificate_chain=_read(tls.certificate_file),
    )
    return TracedChannel(grpc.aio.secure_channel(address, credentials, options=_OPTIONS))


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
