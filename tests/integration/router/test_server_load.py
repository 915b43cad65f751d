"""Load that a picker learns from the metrics of a server."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp.test_utils import TestServer

from services.kit.clock import RealClock
from services.router.adapters import server_port
from services.router.adapters.server_port import ServerPorts
from services.router.core.model import Instance
from tests.support.openai_server import Counting
from tests.support.waiting import until

if TYPE_CHECKING:
    from services.router.core.worker_port import Hello


class Listener:
    """Keeps what ports report. Attributes: loads (others, time for which it is full, s)."""

    def __init__(self) -> None:
        self.loads: list[tuple[int, float]] = []

    def hello(self, instance: Instance, hello: Hello) -> None:
        """Note nothing: the server is up."""

    def broken(self, instance: Instance, unseen: tuple[int, ...]) -> None:
        """Note nothing: the server is away."""

    def note_load(self, instance: Instance, others: int, full_s: float) -> None:  # noqa: ARG002
        """Keep a load."""
        self.loads.append((others, full_s))


@pytest.mark.parametrize("path", ["/metrics", "/nothing-there", ""])
async def test_a_server_says_its_load_where_it_has_metrics(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is of others; a page that is not there is read once a minute, "" never."""
    monkeypatch.setattr(server_port, "PROBE_S", 0.01)
    fault, listener = tmp_path / "fault", Listener()
    fault.write_text("queue")
    server = TestServer(Counting(fault, "").app())
    await server.start_server()
    try:
        async with ServerPorts(RealClock(), lambda _: path) as ports:
            instance = Instance(f"127.0.0.1:{server.port}", "s", "m", "v", 0.9, 1.0, 4)
            port = ports.connect(instance, listener)  # type: ignore[arg-type]
            if path == "/metrics":
                await until(lambda: (3, server_port._FULL_S) in listener.loads)
                fault.write_text("")
                await until(lambda: listener.loads[-1] == (0, 0.0))
            else:
                looks = _count_looks(port, monkeypatch)
                await until(lambda: len(looks) > 5)
                assert listener.loads == ([(0, 0.0)] if path else [])
    finally:
        await server.close()


def _count_looks(port: server_port.ServerPort, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    looks, look = list[float](), port._note

    def noted(problem: str) -> None:
        looks.append(math.nan)
        look(problem)

    monkeypatch.setattr(port, "_note", noted)
    return looks
