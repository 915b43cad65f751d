"""Does the worker at an endpoint answer, and is it ours?"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import grpc

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceStub
from services.kit.config import Tls
from services.kit.rpc import dial

_ATTEMPT_S: Final = 5.0
_PAUSE_S: Final = 0.05


async def answers(endpoint: str, segment_id: str, tls: Tls | None = None) -> None:
    """Wait until a worker of the segment says hello at `endpoint`."""
    async with dial(endpoint, tls) as channel:
        while True:
            with suppress(grpc.aio.AioRpcError):
                call = WorkerServiceStub(channel).Execute(wait_for_ready=True, timeout=_ATTEMPT_S)
                first = await call.read()
                call.cancel()
                if isinstance(first, pb.ExecuteResponse) and first.hello.segment_id == segment_id:
                    return
            await asyncio.sleep(_PAUSE_S)
