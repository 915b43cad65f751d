"""Whether somebody else has a deployment's addresses: two suites on one are none."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from services.kit.config import Deployment, Endpoint
from services.kit.errors import FailedPrecondition
from services.kit.net import split_address


def refuse_taken(deployment: Deployment) -> None:
    """Bind each address that a service of the deployment is to listen at, and let it go again.

    A service that finds its port taken ends; but whoever has the port would be asked in its stead
    whether it serves, and says yes.

    Raises:
        FailedPrecondition: One cannot be bound; names it.
    """
    for name, address in _addresses(deployment):
        host, port = split_address(address)
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            raise FailedPrecondition(
                f"{name}: cannot listen at {address}: {error.strerror}; does this deployment, or "
                "another with this address, run already?"
            ) from error


def _addresses(deployment: Deployment) -> Iterator[tuple[str, str]]:
    endpoints: dict[str, Endpoint | None] = {
        "carbon": deployment.carbon,
        "planner": deployment.planner,
        **{f"nodes.{name}": node for name, node in deployment.nodes.items()},
        "predictor": deployment.predictor,
        "router": deployment.router,
    }
    for name, endpoint in endpoints.items():
        if endpoint is not None:
            yield f"{name}.listen", endpoint.listen
            if endpoint.metrics:
                yield f"{name}.metrics", endpoint.metrics
