"""A dispatcher to try, and what its tests say often."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from services.router.core.dispatch.decisions import Decision
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Instance, Limits, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello

ROUTES = ModelRoutes("digits", slo_latency_s=0.1, slo_percentile=95, instance_choice="shares")
CREDITS = 2


def instance(name: str, share: float = 1.0, *, accuracy: float = 0.9) -> Instance:
    return Instance(
        endpoint=f"{name}:1",
        segment_id=name,
        model="digits",
        variant="small" if accuracy < 0.95 else "large",
        accuracy=accuracy,
        share=share,
        credits=CREDITS,
    )


def request(
    number: int,
    *,
    arrived_s: float = 0.0,
    deadline_s: float = 1.0,
    priority: int = 0,
    body: bytes = b"",
    accuracy_floor: float = 0.0,
) -> PendingRequest:
    made = Request(number, "digits", body, arrived_s, deadline_s, priority=priority)
    return PendingRequest(made._replace(accuracy_floor=accuracy_floor))


def dispatcher(*instances: Instance, limits: Limits | None = None) -> Dispatcher:
    """A dispatcher whose instances are up with one credit each."""
    found = Dispatcher(ROUTES, limits or Limits())
    found.swap(replace(ROUTES, instances=instances))
    for each in instances:
        found.up(each.id, Hello(1, b""))
    return found


def of(kind: type[Any], decisions: Iterable[Decision]) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]
