"""Asks the predictor what it knows, and has it forget."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceStub
from services.cli.client import TIMEOUT_S, ask
from services.cli.console.proto_json import document, print_json
from services.cli.predictor.render import render
from services.kit.config import Deployment, Predictor
from services.kit.config.loader import load
from services.kit.errors import NotFound
from services.kit.rpc import dial

if TYPE_CHECKING:
    from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceAsyncStub


async def status(config: Path, *, as_json: bool) -> None:
    """Print what was foretold, and how well.

    Raises:
        ServiceError: The deployment has no predictor, or it does not answer.
    """
    async with _connected(load(config)) as (stub, endpoint):
        call = stub.GetStatistics(pb.GetStatisticsRequest(), timeout=TIMEOUT_S)
        found = await ask("predictor", endpoint, call)
    if as_json:
        print_json([document(model) for model in found.models])
    else:
        Console().print(render(found.models))


async def forget(config: Path, request: pb.ForgetRequest) -> None:
    """Have prompts forgotten, and print how many.

    Raises:
        ServiceError: The deployment has no predictor, or it does not answer.
    """
    async with _connected(load(config)) as (stub, endpoint):
        answer = await ask("predictor", endpoint, stub.Forget(request, timeout=TIMEOUT_S))
    typer.echo(f"forgotten: {answer.forgotten} prompt(s)")


@asynccontextmanager
async def _connected(
    deployment: Deployment,
) -> AsyncIterator[tuple[PredictorServiceAsyncStub, Predictor]]:
    if deployment.predictor is None:
        raise NotFound("the deployment has no predictor; `predictor: {}` in its file adds one")
    async with dial(deployment.predictor.dial, deployment.tls) as channel:
        yield PredictorServiceStub(channel), deployment.predictor
