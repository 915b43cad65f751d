"""Addresses."""

from __future__ import annotations

import ipaddress
import socket


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[v6]:port".

    Raises:
        ValueError: No port, or one outside 0..65535.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"address must be host:port with a port of 0..65535, got {address!r}")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach `address`."""
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free now on `host`."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
