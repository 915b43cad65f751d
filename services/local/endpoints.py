"""The services of a deployment, and where each is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from services.kit.config import Deployment, Endpoint, Role


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """One service of a deployment.

    Attributes:
        service: The name of the service's package.
        endpoint: Where the service listens, and where others dial it.
        node: An agent's node; empty for other services.
    """

    service: Literal["carbon", "planner", "gpuagent", "predictor", "router", "batch"]
    endpoint: Endpoint
    node: str = ""

    @property
    def name(self) -> str:
        """The service's name among all of the deployment, for example "gpuagent-node-0"."""
        return f"{self.service}-{self.node}" if self.node else self.service

    @property
    def role(self) -> Role:
        """The role of the service's identity."""
        return "agent" if self.service == "gpuagent" else self.service

    @property
    def section(self) -> tuple[str, ...]:
        """Where the deployment file has the service."""
        return ("nodes", self.node) if self.node else (self.service,)


def endpoints(deployment: Deployment) -> Iterator[ServiceEndpoint]:
    """Yield the deployment's services in order of start; they stop in reverse."""
    yield ServiceEndpoint("carbon", deployment.carbon)
    yield ServiceEndpoint("planner", deployment.planner)
    for node, endpoint in deployment.nodes.items():
        yield ServiceEndpoint("gpuagent", endpoint, node)
    if deployment.predictor is not None:
        yield ServiceEndpoint("predictor", deployment.predictor)
    yield ServiceEndpoint("router", deployment.router)
    if deployment.batch is not None:
        yield ServiceEndpoint("batch", deployment.batch)
