"""Ports of this machine: free, taken, and kept from outgoing connections."""

import socket

import pytest

from services.kit.net import PORTS, free_port


def test_a_free_port_can_be_bound_and_no_outgoing_connection_takes_it() -> None:
    port = free_port()

    assert port in PORTS
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))


def test_no_port_is_given_twice_before_anybody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two services of a suite were given one port, about once in five thousand suites."""
    monkeypatch.setattr("services.kit.net.PORTS", range(20_000, 20_004))

    given = [free_port() for _ in range(8)]

    assert len(set(given)) == len(given)


def test_where_all_ports_are_taken_any_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        taken = server.getsockname()[1]
        monkeypatch.setattr("services.kit.net.PORTS", range(taken, taken + 1))

        assert free_port() != taken


def test_a_host_without_any_port_is_an_error() -> None:
    with pytest.raises(OSError, match=r"no port is free on 192\.0\.2\.1"):
        free_port("192.0.2.1")
