"""The limits of each model's requests, from the deployment file."""

from services.kit.config import Deployment
from services.router.core.model import Limits
from services.router.core.queue.request_queue import ByteBudget

_MIB = 2**20
_OVERTAKING_SLOS = 10.0  # far beyond the objective: a request it protects is late anyway


def limits(deployment: Deployment) -> dict[str, Limits]:
    """Return the limits of every model."""
    router = deployment.router
    return {
        name: Limits(
            max_queue=model.max_queue,
            max_attempts=router.max_attempts,
            max_queue_bytes=int(model.max_queue_mib * _MIB),
            default_deadline_s=model.default_deadline_s,
            retry_share=router.retry_share,
            retry_burst=router.retry_burst,
            hedge_after_s=model.hedge_after_s,
            fair_clients=router.fair_clients,
            overtaking_s=model.overtaking_s or _OVERTAKING_SLOS * model.slo.latency_s,
        )
        for name, model in deployment.models.items()
    }


def byte_budget(deployment: Deployment) -> ByteBudget:
    """Return the bytes that waiting requests may take, over all models."""
    return ByteBudget(int(deployment.router.max_queue_mib * _MIB))
