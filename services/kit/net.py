"""Addresses."""

import errno
import ipaddress
import re
import secrets
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, TypeAlias
from urllib.parse import unquote

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

PORTS: Final = range(20_000, 30_000)
"""Preferred ports of `free_port`, below Kubernetes' node ports."""

_TRIES: Final = 20
_MOST_DIGITS: Final = 5

_CREDENTIALS: Final = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16"))
)
"""Of clouds' metadata services, beside the link-local 169.254.169.254."""

_given: Final[deque[int]] = deque(maxlen=1024)  # callers may not listen yet


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[v6]:port"; brackets may be missing.

    Raises:
        ValueError: No port, or one outside 0..65535.
    """
    host, colon, port = address.rpartition(":")
    digits = port.isascii() and port.isdigit() and len(port) <= _MOST_DIGITS
    if not (colon and host and digits) or int(port) > 65535:
        raise ValueError(f"address must be host:port with a port of 0..65535, got {address!r}")
    return host.strip("[]"), int(port)


def address_of(host: str, port: int) -> str:
    """Return "host:port", an IPv6 address in brackets, as gRPC and URLs need it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach `address`."""
    return is_loopback_host(split_address(address)[0])


def is_loopback_host(host: str) -> bool:
    """Return whether `host`, a name or an IP address, is this machine."""
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


def is_ip(host: str) -> bool:
    """Return whether `host` is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def source_of(peer: str) -> IpAddress | None:
    """Return the IP address of a gRPC peer; None: it has none, as that of a Unix socket."""
    host = unquote(host_of(peer).partition(":")[2]).strip("[]")
    return plain_ip(host) if is_ip(host) else None


def may_name(ip: IpAddress, source: IpAddress | None, networks: Iterable[str]) -> bool:
    """Return whether a peer may have others send requests to an address.

    Link-local, multicast, unspecified and reserved addresses, and those at which clouds hand out
    credentials, never a service; loopback is another machine at every peer.

    Args:
        ip: The address.
        source: Where the peer calls from.
        networks: Networks, CIDR, whose addresses peers may name.
    """
    if ip.is_loopback:
        return source is not None and source.is_loopback
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved:
        return False
    if ip in _CREDENTIALS:
        return False
    return ip == source or any(ip in ipaddress.ip_network(each) for each in networks)


def plain_ip(host: str) -> IpAddress:
    """Return an IP address without its scope; an IPv4 address in an IPv6 one as the former."""
    found = ipaddress.ip_address(host.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def without_password(text: str) -> str:
    """Return text with the passwords of its URL replaced: before a host, and in the query.

    A password that should have been escaped, "a/b" or "a@b", is replaced as a whole.
    """
    return re.sub(r"(?<=password=)[^&]*", "***", re.sub(r"(://[^:@/?]*):.*@", r"\1:***@", text))


def host_of(peer: str) -> str:
    """Return the host of a gRPC peer ("ipv4:10.0.0.1:50002"), or all of a Unix socket's."""
    return peer if peer.startswith("unix") else peer.rpartition(":")[0]


def is_host(identity: str) -> bool:
    """Return whether an identity is but a host (`host_of`), which several clients may share."""
    return identity.startswith(("ipv4:", "ipv6:", "unix"))


def matches(pattern: str, name: str) -> bool:
    """Return whether a name is the pattern, or begins like it where it ends in "*"."""
    if not pattern.endswith("*"):
        return name == pattern
    return len(name) >= len(pattern) and name.startswith(pattern[:-1])


def bound_socket(address: str, *, shared: bool = False) -> socket.socket:
    """Return a TCP socket to listen on.

    Args:
        address: "host:port"; no host: every interface, port 0 picks a free one.
        shared: Whether other processes listen there, too.

    Raises:
        OSError: It cannot be bound.
    """
    host, port = split_address(address)
    family, kind, protocol, _, place = socket.getaddrinfo(
        host.encode() or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(place)
    except OSError:
        bound.close()
        raise
    return bound


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free now on `host`.

    Preferably in `PORTS`, below the ports that Linux gives to outgoing connections by default, so
    that none of these takes it before the caller listens, and none that this process was given
    lately.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = (PORTS[secrets.randbelow(len(PORTS))] for _ in range(_TRIES))
    for port in (*tried, 0):
        if port in _given:
            continue
        with socket.socket(family) as probe, suppress(OSError):
            probe.bind((host, port))
            found: int = probe.getsockname()[1]
            _given.append(found)
            return found
    raise OSError(errno.EADDRNOTAVAIL, f"no port is free on {host}")
