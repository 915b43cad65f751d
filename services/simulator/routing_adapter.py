"""The planner's routing table in the router's words; live, it goes over the wire."""

from __future__ import annotations

from collections.abc import Iterable

from services.kit.config import Deployment
from services.planner.core import routing_table as planner
from services.router.core import model as router


def first(deployment: Deployment) -> router.RoutingTable:
    """Return what is known before the planner's first table: the models, no instances."""
    return table(0, 0, planner.routes(deployment, (), {}), deployment)


def table(
    revision: int, version: int, models: Iterable[planner.ModelRoutes], deployment: Deployment
) -> router.RoutingTable:
    """Return a routing table.

    Args:
        revision: Its number.
        version: The plan it serves.
        models: The planner's routes.
        deployment: For the models' policies.
    """
    return router.RoutingTable(
        revision=revision,
        plan_version=version,
        models=tuple(
            router.ModelRoutes(
                model=routes.model,
                slo_latency_s=routes.slo_latency_s,
                slo_percentile=routes.slo_percentile,
                instance_choice=deployment.models[routes.model].instance_choice,
                discipline=deployment.models[routes.model].discipline,
                intensity_threshold=deployment.models[routes.model].intensity_threshold,
                instances=tuple(_instance(routes.model, each) for each in routes.instances),
            )
            for routes in models
        ),
    )


def _instance(model: str, each: planner.Instance) -> router.Instance:
    return router.Instance(
        endpoint=each.endpoint,
        segment_id=each.segment_id,
        model=model,
        variant=each.variant,
        accuracy=each.accuracy,
        share=each.share,
        credits=each.credits,
        zone=each.zone,
        pue=each.pue,
        gpu_idle_power_w=each.gpu_idle_power_w,
    )
