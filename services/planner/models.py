"""The deployment's models in the planner's words."""

from __future__ import annotations

from services.kit.deployment import Deployment
from services.kit.profiles.load import load_profile
from services.planner.domain import Model, Variant


def load_models(deployment: Deployment) -> tuple[Model, ...]:
    """Return the models with their profiles read; reads files."""
    return tuple(
        Model(
            name=name,
            slo_latency_s=model.slo.latency_s,
            slo_percentile=model.slo.percentile,
            demand_rps=model.demand_rps,
            variants=tuple(
                Variant(variant_name, variant.accuracy, load_profile(variant.profile))
                for variant_name, variant in model.variants.items()
            ),
        )
        for name, model in deployment.models.items()
    )
