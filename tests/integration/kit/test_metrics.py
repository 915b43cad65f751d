"""The metrics endpoint serves while its block runs, and lets go at once."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter

from services.kit.telemetry.metrics import exposed


def test_the_page_is_served_while_the_block_runs() -> None:
    registry = CollectorRegistry()
    Counter("seen", "Times.", registry=registry).inc(3)
    with (
        exposed("127.0.0.1:0", registry=registry) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply,
    ):
        assert b"seen_total 3.0" in reply.read()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_collector_is_the_registrys_while_the_block_runs_and_again_later() -> None:
    registry = CollectorRegistry()
    seen = Counter("seen", "Times.", registry=None)
    for _ in range(2):
        with exposed("127.0.0.1:0", [seen], registry):
            assert list(registry.collect())
        assert not list(registry.collect())


async def test_leaving_does_not_hold_the_loop() -> None:
    """The detector of tests/conftest.py fails this test where it waits for the server's poll."""
    with exposed("127.0.0.1:0", registry=CollectorRegistry()):
        pass


def test_without_an_address_nothing_is_served() -> None:
    with exposed("") as port:
        assert port == 0


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="in use"), exposed(address):
            pass
