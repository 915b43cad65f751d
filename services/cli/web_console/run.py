"""Runs the console as a client of a deployment's services."""

import asyncio
import time

from services.cli.client import connected
from services.cli.web_console.operators import PlannerOperators
from services.cli.web_console.readers import ServiceReaders
from services.cli.web_console.identity import Rights, read_tokens
from services.cli.web_console.server import serve
from services.kit.config import Deployment
from services.kit.errors import InvalidArgument
from services.kit.process.reload import Reloads
from services.kit.telemetry import logs


async def run(deployment: Deployment, stop: asyncio.Event, *, reloads: Reloads) -> None:
    """Serve the console until the event is set."""
    del reloads  # nothing of it changes at run time
    settings = deployment.console
    if not settings.listen:
        raise InvalidArgument('console.listen: empty; give "host:port"', field="console.listen")
    tokens = read_tokens(settings.token_file) if settings.token_file else None
    logs.get("console").info("listening", url=f"http://{settings.listen}/")
    async with connected(deployment) as clients:
        await serve(
            ServiceReaders(clients, deployment, time.monotonic),
            settings.listen,
            stop,
            Rights(tokens, PlannerOperators(clients) if settings.allow_changes else None),
        )
