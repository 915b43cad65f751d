"""An agent as a process of its own, and what runs beside it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceStub

if TYPE_CHECKING:
    from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceAsyncStub


@asynccontextmanager
async def agent(config: Path, address: str) -> AsyncIterator[GpuAgentServiceAsyncStub]:
    """Run the agent of a deployment file's only node, and speak to it, while the block runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "services.cli", "gpuagent", "serve"),
        env={**os.environ, "CINQUEFOIL_CONFIG": str(config)},
    )
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield GpuAgentServiceStub(channel)
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def beside(work: Iterable[Coroutine[Any, Any, Any]]) -> AsyncIterator[None]:
    """Do some work while the block runs; how it ends does not matter."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
