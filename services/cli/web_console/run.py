"""Runs the console as a client of a deployment's services."""

import asyncio
import time

from services.cli.client import connected
from services.cli.web_console.readers import ServiceReaders
from services.console.server import serve
from services.kit.config import Deployment
from services.kit.process.reload import Reloads
from services.kit.telemetry import logs


async def run(deployment: Deployment, stop: asyncio.Event, *, reloads: Reloads) -> None:
    """Serve the console until the event is set."""
    del reloads  # nothing of it changes at run time
    listen = deployment.console.listen
    logs.get("console").info("listening", url=f"http://{listen}/")
    async with connected(deployment) as clients:
        await serve(ServiceReaders(clients, deployment.digest, time.monotonic), listen, stop)
