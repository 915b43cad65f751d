"""Check of a deployment's addresses for conflicts with other processes."""

from services.kit.config import Deployment
from services.kit.errors import FailedPrecondition
from services.kit.net import bound_socket
from services.local.endpoints import endpoints


def refuse_taken(deployment: Deployment) -> None:
    """Bind each address that a service of the deployment is to listen at, and release it.

    A service that finds its port taken ends, but the process that has the port would answer the
    health check in its place.

    Raises:
        FailedPrecondition: One cannot be bound; names it.
    """
    for service in endpoints(deployment):
        name, endpoint = ".".join(service.section), service.endpoint
        _bind(f"{name}.listen", endpoint.listen)
        if endpoint.metrics:
            _bind(f"{name}.metrics", endpoint.metrics)
    if deployment.router.http_listen:
        _bind("router.http_listen", deployment.router.http_listen)
    if deployment.router.picker_listen:
        _bind("router.picker_listen", deployment.router.picker_listen)
    if deployment.console.listen:
        _bind("console.listen", deployment.console.listen)


def _bind(name: str, address: str) -> None:
    try:
        bound_socket(address).close()
    except OSError as error:
        raise FailedPrecondition(
            f"{name}: cannot listen at {address}: {error.strerror}; does this deployment, or "
            "another with this address, run already?"
        ) from error
