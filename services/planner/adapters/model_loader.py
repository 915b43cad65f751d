"""Loading of the deployment's models as the planner's records."""

import math

from cinquefoil.planner.v1.records import Dispersion
from services.kit import config
from services.kit.config import Deployment
from services.kit.profiles.core.profile import Profile
from services.kit.profiles.factory import (
    clock_sensitivity,
    latency_shares,
    load_profile,
    load_stages,
)
from services.planner.core.model import Model, PipelineStage, Variant


def load_models(deployment: Deployment) -> tuple[Model, ...]:
    """Return the models with their profiles read; reads files."""
    return tuple(
        Model(
            name=name,
            slo_latency_s=model.slo.latency_s,
            slo_percentile=model.slo.percentile,
            slo_first_token_s=model.slo.ttft_s or math.inf,
            slo_token_s=model.slo.tpot_s or math.inf,
            demand_rps=model.demand_rps,
            dispersion=Dispersion(model.dispersion.at_1s, model.dispersion.at_10s),
            overload_weight=model.overload_weight,
            replicas_min=model.replicas_min,
            spread=model.spread,
            survive=model.survive,
            servers=model.servers,
            fills=model.instance_choice == "consolidated",
            variants=tuple(
                Variant(
                    variant_name,
                    variant.accuracy,
                    load_profile(variant.profile, clock_sensitivity(variant), variant.parallel),
                    pipeline=_pipeline(variant),
                    clock_sensitivity=clock_sensitivity(variant),
                    max_batch=variant.max_batch,
                    context_tokens=_context_tokens(variant),
                    gpus=variant.gpus,
                )
                for variant_name, variant in model.variants.items()
            ),
        )
        for name, model in deployment.models.items()
    )


def _context_tokens(variant: config.Variant) -> int | None:
    runtime = variant.runtime
    if isinstance(runtime, config.GenerativeRuntime | config.OpenAiRuntime):
        return runtime.context_tokens
    return None


def _pipeline(variant: config.Variant) -> tuple[tuple[PipelineStage, Profile], ...]:
    """Return the stages of a variant; each gets a part of the latency in proportion to its own."""
    profiles = load_stages(variant)
    budgets = latency_shares(profiles) if profiles else ()
    stages = (
        PipelineStage(
            index,
            len(profiles),
            budget,
            settings.transfer_s,
            clock_sensitivity(variant, index),
        )
        for index, (settings, budget) in enumerate(zip(variant.stages, budgets, strict=True))
    )
    return tuple(zip(stages, profiles, strict=True))
