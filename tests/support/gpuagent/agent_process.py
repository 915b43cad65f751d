"""An agent of simulated GPUs as a process of its own, which a test can kill."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import yaml

from services.kit.config import Deployment
from tests.support.gpuagent.agent_service import NODE


@asynccontextmanager
async def agent_process(
    settings: Deployment, *flags: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an agent as a process; what it leaves is killed at the end."""
    folder = settings.nodes[NODE].state_dir
    path = folder / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.cli",
        "gpuagent",
        "serve",
        "--node",
        NODE,
        *flags,
        env={**os.environ, "CINQUEFOIL_CONFIG": str(path)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), 45)


async def killed(process: asyncio.subprocess.Process) -> None:
    """End an agent as a power cut would."""
    process.kill()
    await process.wait()
