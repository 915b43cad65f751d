"""Addresses are taken apart, or refused with what is allowed."""

from __future__ import annotations

import socket

import pytest

from services.kit.net import PORTS, free_port, is_loopback, split_address


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:8461", ("127.0.0.1", 8461)),
        ("carbon:0", ("carbon", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_host_and_port_are_taken_apart(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "carbon", ":8461", "carbon:", "carbon:http", "carbon:65536", "carbon:-1"]
)
def test_an_address_without_a_host_or_a_proper_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        split_address(address)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("carbon:1", False),
    ],
)
def test_only_this_machines_own_addresses_are_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_a_free_port_can_be_bound_and_no_outgoing_connection_takes_it() -> None:
    port = free_port()

    assert port in PORTS
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))


def test_where_all_ports_are_taken_any_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        taken = server.getsockname()[1]
        monkeypatch.setattr("services.kit.net.PORTS", range(taken, taken + 1))

        assert free_port() != taken


def test_a_host_without_any_port_is_an_error() -> None:
    with pytest.raises(OSError, match=r"no port is free on 192\.0\.2\.1"):
        free_port("192.0.2.1")
