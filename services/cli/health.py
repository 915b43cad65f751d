"""Asking one service whether it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.client import TIMEOUT_S, ask
from services.kit.config import Deployment, Endpoint
from services.kit.config.loader import load
from services.kit.errors import InvalidArgument, Unavailable
from services.kit.rpc import dial


async def check(config: Path, service: str) -> None:
    """Print "serving".

    Raises:
        ConfigError: The file is wrong.
        InvalidArgument: The deployment has no such service.
        Unavailable: It does not answer, or says that it does not serve.
    """
    deployment = load(config)
    endpoint = _endpoint(deployment, service)
    async with dial(endpoint.dial, deployment.tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lag behind
        request = health_pb2.HealthCheckRequest()
        answer = await ask(service, endpoint, stub.Check(request, timeout=TIMEOUT_S))
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable(f"{service} at {endpoint.dial} answers, but does not serve yet")
    typer.echo("serving")


def _endpoint(deployment: Deployment, service: str) -> Endpoint:
    known: dict[str, Endpoint] = {
        "carbon": deployment.carbon,
        "planner": deployment.planner,
        "router": deployment.router,
        **deployment.nodes,
    }
    if deployment.predictor is not None:
        known["predictor"] = deployment.predictor
    if service not in known:
        raise InvalidArgument(f"no service {service!r}; this deployment has {', '.join(known)}")
    return known[service]
