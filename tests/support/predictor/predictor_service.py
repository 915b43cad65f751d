"""The predictor service as its composition root wires it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceStub
from services.kit.rpc import dial
from services.predictor.app import run

if TYPE_CHECKING:
    import grpc

    from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceAsyncStub
    from services.kit.config import Deployment
    from tests.conftest import Deploy

MODEL = "digits"
CAKE = b"How do I bake a chocolate cake?"
LIKE_CAKE = b"What is the way to bake a cake with chocolate?"
SQL = b"Write a SQL query that joins two tables."


def deployed(deploy: Deploy, tmp_path: Path, **changes: Any) -> Deployment:
    """Return a deployment with a predictor whose cache lies in the test's folder."""
    cache = {"file": str(tmp_path / "predictor.sqlite3"), **changes.pop("cache", {})}
    return deploy({"predictor": {"listen": "127.0.0.1:0", "cache": cache, **changes}})


@asynccontextmanager
async def predictor(deployment: Deployment) -> AsyncIterator[PredictorServiceAsyncStub]:
    """Run the service while the block runs; its drain must succeed."""
    async with channel(deployment) as found:
        yield PredictorServiceStub(found)


@asynccontextmanager
async def channel(deployment: Deployment) -> AsyncIterator[grpc.aio.Channel]:
    """Run the service while the block runs; yield a channel to it."""
    stop, ports = asyncio.Event(), asyncio.Queue[int]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(deployment, stop, ports.put_nowait), name="predictor")
        async with dial(f"127.0.0.1:{await ports.get()}") as found:
            try:
                yield found
            finally:
                stop.set()


async def predict(
    stub: PredictorServiceAsyncStub, *prompts: bytes, model: str = MODEL
) -> list[pb.PredictResponse]:
    """Request predictions of some prompts at once; return the responses in the prompts' order."""
    requests = (
        pb.PredictRequest(id=i, model=model, prompt=prompt) for i, prompt in enumerate(prompts)
    )
    answers = [answer async for answer in stub.Predict(requests)]
    assert len(answers) == len(prompts)
    return sorted(answers, key=lambda answer: answer.id)


async def observe(
    stub: PredictorServiceAsyncStub, prompt: bytes, *tokens: int, model: str = MODEL
) -> int:
    """Report true lengths of a prompt's answers; return how many were learned from."""
    observations = [
        pb.Observation(model=model, prompt=prompt, output_tokens=each) for each in tokens
    ]
    return (await stub.Observe(pb.ObserveRequest(observations=observations))).learned
