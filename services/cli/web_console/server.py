"""The console as a client of a deployment's services."""

import asyncio
import time
from functools import partial
from typing import Final

from services.cli.client import connected
from services.cli.web_console.app import application
from services.cli.web_console.identity import READ_ONLY, Rights, read_tokens
from services.cli.web_console.operators import carry_out
from services.cli.web_console.readers import ServiceReaders
from services.kit.config import Deployment
from services.kit.errors import InvalidArgument
from services.kit.http.server import serving_http
from services.kit.net import is_loopback, split_address
from services.kit.process import systemd
from services.kit.process.reload import Reloads
from services.kit.telemetry import logs

_GRACE_S: Final = 1.0
_MAX_CONNECTIONS: Final = 256
"""A page holds one or two for its events."""


async def run(deployment: Deployment, stop: asyncio.Event, *, reloads: Reloads) -> None:
    """Serve the console of a deployment until the event is set."""
    settings = deployment.console
    if not settings.listen:
        raise InvalidArgument('console.listen: empty; give "host:port"', field="console.listen")
    tokens = read_tokens(settings.token_file) if settings.token_file else None
    logs.get("console").info("listening", url=f"http://{settings.listen}/")
    async with connected(deployment) as clients:
        readers = ServiceReaders(clients, deployment, time.monotonic)

        async def reload(changed: Deployment) -> None:
            readers.deployment = changed

        reloads.serve(("console.*", "models*"), ("models*",), reload)
        rights = Rights(tokens, partial(carry_out, clients) if settings.allow_changes else None)
        await serve(readers, settings.listen, stop, rights)


async def serve(
    readers: ServiceReaders, listen: str, stop: asyncio.Event, rights: Rights = READ_ONLY
) -> None:
    """Serve the console until the event is set.

    Args:
        readers: Readers of the deployment.
        listen: "host:port" to bind.
        rights: Permissions to see it, and to change the deployment.
        stop: Ends it; open event streams end within a second.
    """
    host, _ = split_address(listen)
    # Names of a loopback address; a console elsewhere has names of its own.
    hosts = ("localhost", "127.0.0.1", "[::1]", host) if is_loopback(listen) else ("*",)
    async with serving_http(
        listen,
        application(readers, hosts, rights),
        what="the console",
        max_connections=_MAX_CONNECTIONS,
        grace_s=_GRACE_S,
    ):
        systemd.ready()
        await stop.wait()
