"""Which processes a deployment is made of."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from services.kit.config import Deployment, Tls
from services.local.endpoints import ServiceEndpoint, endpoints


@dataclass(frozen=True, slots=True)
class Program:
    """A process to keep running.

    Attributes:
        name: Its name, and its log file's.
        argv: Command line.
        health: "host:port" of its grpc.health.v1; empty: it counts as serving once it runs.
        tls: How to dial it.
    """

    name: str
    argv: tuple[str, ...]
    health: str = ""
    tls: Tls | None = None


def programs(deployment: Deployment, config: Path) -> tuple[Program, ...]:
    """Return a process per service, in order of start; they stop in reverse.

    Names are those of `endpoints`, for example "carbon" and "gpuagent-node-0".
    """
    return tuple(
        _program(service, config.resolve(), deployment.identity("operator"))
        for service in endpoints(deployment)
    )


def _program(service: ServiceEndpoint, config: Path, tls: Tls | None) -> Program:
    # -P: a folder `services` of the user's, where the suite is started, is not ours.
    command = (sys.executable, "-P", "-m", "services.cli", service.service, "serve")
    node = ("--node", service.node) if service.node else ()
    argv = (*command, "--with-parent", "--config", str(config), *node)
    return Program(service.name, argv, service.endpoint.dial, tls)
