"""The console as a client of a deployment's services."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from services.cli.client import connected
from services.cli.web_console.app import application
from services.cli.web_console.identity import READ_ONLY, Rights, read_tokens
from services.cli.web_console.operators import carry_out
from services.cli.web_console.readers import ServiceReaders
from services.kit.config import Deployment
from services.kit.errors import InvalidArgument
from services.kit.net import is_loopback, split_address
from services.kit.process.reload import Reloads
from services.kit.telemetry import logs

_GRACE_S = 1


async def run(deployment: Deployment, stop: asyncio.Event, *, reloads: Reloads) -> None:
    """Serve the console of a deployment until the event is set."""
    del reloads  # nothing of it changes at run time
    settings = deployment.console
    if not settings.listen:
        raise InvalidArgument('console.listen: empty; give "host:port"', field="console.listen")
    tokens = read_tokens(settings.token_file) if settings.token_file else None
    logs.get("console").info("listening", url=f"http://{settings.listen}/")
    async with connected(deployment) as clients:
        readers = ServiceReaders(clients, deployment, time.monotonic)
        rights = Rights(tokens, partial(carry_out, clients) if settings.allow_changes else None)
        await serve(readers, settings.listen, stop, rights)


async def serve(
    readers: ServiceReaders, listen: str, stop: asyncio.Event, rights: Rights = READ_ONLY
) -> None:
    """Serve the console until the event is set.

    Args:
        readers: What it shows.
        listen: "host:port" to bind.
        rights: Who may see it, and whether it may change the deployment.
        stop: Ends it; open event streams end within a second.
    """
    host, port = split_address(listen)
    # A loopback address has these names; what a deployment puts elsewhere has names of its own.
    hosts = ("localhost", "127.0.0.1", "[::1]", host) if is_loopback(listen) else ("*",)
    server = _Server(
        uvicorn.Config(
            application(readers, hosts, rights),
            host=host.strip("[]"),
            port=port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            ws="none",
            lifespan="off",
        )
    )
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(), name="console.serve")
        stopping = tasks.create_task(stop.wait(), name="console.stop")
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await asyncio.wait({serving})
        stopping.cancel()


class _Server(uvicorn.Server):
    """Leaves signals to the process that it runs in."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
