"""Which processes a deployment is made of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.kit.config import Deployment, Endpoint, Tls


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
    """Return the deployment's services in order of start; they stop in reverse.

    Names: "carbon", "planner", "gpuagent-<node>" for each node, "predictor" where there is one,
    "router".
    """
    return tuple(_programs(deployment, config))


def _programs(deployment: Deployment, config: Path) -> Iterator[Program]:
    def serve(name: str, service: str, endpoint: Endpoint, *more: str) -> Program:
        # -P: a folder `services` of the user's, where the suite is started, is not ours.
        command = (sys.executable, "-P", "-m", "services.cli", service, "serve", "--with-parent")
        argv = (*command, "--config", str(config.resolve()), *more)
        return Program(name, argv, endpoint.dial, deployment.tls)

    yield serve("carbon", "carbon", deployment.carbon)
    yield serve("planner", "planner", deployment.planner)
    for node, endpoint in deployment.nodes.items():
        yield serve(f"gpuagent-{node}", "gpuagent", endpoint, "--node", node)
    if deployment.predictor is not None:
        yield serve("predictor", "predictor", deployment.predictor)
    yield serve("router", "router", deployment.router)
