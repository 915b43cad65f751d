"""Settings that each of several router processes reads of the deployment."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from services.kit.net import split_address
from services.router.runtime.processes import own_part, shared_port

if TYPE_CHECKING:
    from tests.conftest import Deploy


@pytest.mark.parametrize(
    ("metrics", "own"),
    [
        ("", ["", ""]),
        ("127.0.0.1:9464", ["127.0.0.1:9464", "127.0.0.1:9465"]),
        ("[::1]:9464", ["[::1]:9464", "[::1]:9465"]),
        ("127.0.0.1:0", ["127.0.0.1:0", "127.0.0.1:0"]),
    ],
)
def test_processes_share_the_address_and_have_metrics_ports_of_their_own(
    deployment: Deploy, metrics: str, own: list[str]
) -> None:
    whole = deployment({"router": {"metrics": metrics, "processes": 2}})
    parts = [
        own_part(whole, ("127.0.0.1:8464", "127.0.0.1:8466"), index).router for index in range(2)
    ]

    assert [part.metrics for part in parts] == own
    assert {part.listen for part in parts} == {"127.0.0.1:8464"}


def test_a_port_is_picked_that_several_routers_can_listen_on_and_no_other_program() -> None:
    with shared_port("127.0.0.1:0") as address, socket.socket() as one, socket.socket() as other:
        for listener in (one, other):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(split_address(address))
            listener.listen()
        with pytest.raises(OSError, match="in use"), shared_port(address):
            pass
