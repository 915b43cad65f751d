"""Checks the health of one service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.client import explaining
from services.kit.config.loader import load
from services.kit.errors import InvalidArgument, Unavailable
from services.kit.rpc import dial
from services.local.endpoints import endpoints


async def check(config: Path, service: str) -> None:
    """Print "serving".

    Args:
        config: Deployment file.
        service: A service of the deployment; an agent by the name of its node.

    Raises:
        ConfigError: The file is wrong.
        InvalidArgument: The deployment has no such service.
        Unavailable: The service does not answer, or answers that it does not serve.
    """
    deployment = load(config)
    known = {each.node or each.service: each.endpoint.dial for each in endpoints(deployment)}
    if service not in known:
        raise InvalidArgument(f"no service {service!r}; this deployment has {', '.join(known)}")
    address = known[service]
    async with dial(address, deployment.identity("operator")) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lag behind
        request = health_pb2.HealthCheckRequest()
        answer = await explaining(stub, service, address).Check(request)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable(f"{service} at {address} answers, but does not serve yet")
    typer.echo("serving")
