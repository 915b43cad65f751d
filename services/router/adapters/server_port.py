"""Servers behind a gateway: a request sent to one is a pick, which the gateway carries out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import aiohttp

from inference import grpc_service_pb2 as pb
from services.kit.clock import Clock
from services.kit.off_loop import off_loop
from services.kit.owned_tasks import OwnedTasks
from services.kit.server_metrics.figures import load_of
from services.kit.server_metrics.page import fetch
from services.kit.telemetry import logs
from services.router.core.model import Instance, Request
from services.router.core.worker_port import Hello, Result
from services.router.runtime.decision_executor import DecisionExecutor

PROBE_S: Final = 1.0
"""Time between two looks at a server, s; at a silent one, too."""

_PROBES: Final = 64  # at a time
_TIMEOUT: Final = aiohttp.ClientTimeout(total=3.0)
_TIMEOUTS: Final = 3  # in turn, after which a server that accepts connections is given up
_UNWELL: Final = 500
_LOAD_TIMEOUT: Final = aiohttp.ClientTimeout(total=1.0)
_LOAD_BYTES: Final = 2**20
"""Of a page of metrics; vLLM's, of one model, is about 100 kB."""

_NO_LOAD_S: Final = 60.0
"""Time for which a server without such metrics is not read again, s."""

_MOST_OTHERS: Final = 4096
"""Requests of others that count: as many as a server may have slots."""

_FULL_S: Final = 3 * PROBE_S
"""Time for which a server counts as full, unless its next page says otherwise, s."""

_METADATA: Final = pb.ModelMetadataResponse(
    platform="openai",
    inputs=[
        pb.ModelMetadataResponse.TensorMetadata(name="text_input", datatype="BYTES", shape=[1])
    ],
    outputs=[
        pb.ModelMetadataResponse.TensorMetadata(name="text_output", datatype="BYTES", shape=[1])
    ],
).SerializeToString()

_log = logs.get("picker")


class Pick:
    """A gateway's request on its way to a server.

    Attributes:
        chosen: The server, once the core has chosen one; or why none was.
        subset: Addresses that the gateway allows; None: all.
        port: The server's port, once chosen.
        number: Number of the request there.
    """

    __slots__ = ("chosen", "number", "port", "subset")

    def __init__(self, subset: frozenset[str] | None) -> None:
        self.chosen: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()
        self.subset = subset
        self.port: ServerPort | None = None
        self.number = 0

    def allows(self, address: str) -> bool:
        """Return whether the gateway allows a server, by address or by host alone."""
        return self.subset is None or not self.subset.isdisjoint(
            (address, address.rpartition(":")[0])
        )


class ServerPorts(OwnedTasks):
    """The ports of all servers; enter it to open any, leave it to end them all.

    Attributes:
        picks: Open picks by the id of their request.
    """

    def __init__(self, clock: Clock, metrics_of: Callable[[Instance], str]) -> None:
        """Begin with none.

        Args:
            clock: Time.
            metrics_of: Returns the path of a server's metrics; "": they are not read.
        """
        super().__init__()
        self._metrics_of = metrics_of
        self.picks: dict[str, Pick] = {}
        self._clock = clock
        self._open: dict[str, ServerPort] = {}
        self._session: aiohttp.ClientSession | None = None

    async def _ended(self) -> None:
        if self._session is not None:
            await self._session.close()

    def connect(self, instance: Instance, listener: DecisionExecutor) -> ServerPort:
        """Return the port of a server, and begin to look at it."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=_PROBES, force_close=True)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=_TIMEOUT, trust_env=False
            )
        page = partial(self._metrics_of, instance)
        port = ServerPort(instance, listener, self.picks, self._session, self._clock, page)
        port.task = self.start(port.run(), f"router.server[{instance.endpoint}]")
        self._open[instance.endpoint] = port
        port.task.add_done_callback(lambda _: self._forget(port))
        return port

    def suspect(self, address: str) -> None:
        """Look at a server at once: the gateway went past it."""
        if port := self._open.get(address):
            port.look.set()

    def _forget(self, port: ServerPort) -> None:
        if self._open.get(port.instance.endpoint) is port:
            del self._open[port.instance.endpoint]


class ServerPort:
    """One server: `WorkerPort`.

    Attributes:
        instance: The server.
        task: Runs `run`; set by the one that starts it.
        look: Set to look at the server at once.
    """

    task: asyncio.Task[None]

    def __init__(  # noqa: PLR0913, PLR0917 - what all ports share
        self,
        instance: Instance,
        listener: DecisionExecutor,
        picks: Mapping[str, Pick],
        session: aiohttp.ClientSession,
        clock: Clock,
        metrics: Callable[[], str],
    ) -> None:
        self.instance = instance
        self.look = asyncio.Event()
        self._listener = listener
        self._picks = picks
        self._session = session
        self._clock = clock
        self._up = False
        self._late = 0
        self._held = 0
        self._metrics = metrics
        self._load_due_s = 0.0

    def send(self, request: Request) -> None:
        """Give a request's pick this server; refuse one that no gateway waits for."""
        pick = self._picks.get(request.id)
        if pick is not None and pick.allows(self.instance.endpoint) and not pick.chosen.done():
            self._held += 1
            pick.port, pick.number = self, request.number
            pick.chosen.set_result(self.instance)
            return
        refusal = Result(
            request.number,
            "FAILED_PRECONDITION" if pick is None else "UNAVAILABLE",
            f"model {request.model!r} has servers of its own (models.{request.model}.servers):"
            " requests reach them through their gateway"
            if pick is None
            else "the gateway does not allow this server",
            reason="BEHIND_A_GATEWAY",
        )
        report = self._listener.results
        asyncio.get_running_loop().call_soon(report, self.instance, (refusal,))

    def withdraw(self, number: int) -> None:
        """Keep the credit: the end of the gateway's stream gives it back."""

    def finish(self, result: Result) -> None:
        """Report the end of a pick: its credit is free."""
        self._held -= 1
        self._listener.results(self.instance, (result,))
        self._leave()

    def close(self) -> None:
        """End the port for good."""
        self.task.cancel()

    async def run(self) -> None:
        """Look at the server until cancelled."""
        while True:
            self._note(await self._why_not())
            await self._note_load()
            self.look.clear()
            try:
                async with asyncio.timeout(PROBE_S * random.uniform(0.9, 1.1)):  # noqa: S311
                    await self.look.wait()
            except TimeoutError:
                continue

    async def _why_not(self) -> str:
        """Return why the server takes no requests; "": it does."""
        try:
            async with self._session.get(
                f"http://{self.instance.endpoint}/health", allow_redirects=False
            ) as answer:
                self._late = 0
                return f"HTTP {answer.status}" if answer.status >= _UNWELL else ""
        except TimeoutError:
            self._late += 1
            return "it does not answer" if self._late >= _TIMEOUTS or not self._up else ""
        except aiohttp.ClientError as error:
            return f"{type(error).__name__}: {error}"

    async def _note_load(self) -> None:
        """Report what the server says of its load, where it does."""
        path = self._metrics()
        if not (self._up and path) or self._clock.monotonic() < self._load_due_s:
            return
        held, load = self._held, None
        url = f"http://{self.instance.endpoint}{path}"
        try:
            page = await fetch(self._session, url, _LOAD_TIMEOUT, _LOAD_BYTES)
            load = await off_loop(len(page), partial(load_of, page))
        except (OSError, aiohttp.ClientError, TimeoutError):
            pass
        if load is None:
            self._load_due_s = self._clock.monotonic() + _NO_LOAD_S
            self._listener.note_load(self.instance, 0, 0.0)
            return
        # What came or went while the page was on its way may be on it or not.
        others = max(round(min(load.requests, _MOST_OTHERS)) - max(held, self._held), 0)
        self._listener.note_load(self.instance, others, _FULL_S if load.full else 0.0)

    def _note(self, problem: str) -> None:
        up = not problem
        if up == self._up:
            return
        self._up = up
        about = {"endpoint": self.instance.endpoint, "model": self.instance.model}
        if up:
            self._load_due_s = 0.0
            _log.info("the server takes requests", **about)
            self._listener.hello(self.instance, Hello(self.instance.credits, _METADATA))
        else:
            _log.warning("the server takes no requests", why=problem, **about)
            self._listener.draining(self.instance)
            self._leave()

    def _leave(self) -> None:
        """Report a server that is not there as away, once no gateway waits for its answers."""
        if not (self._up or self._held):
            self._listener.broken(self.instance, ())
