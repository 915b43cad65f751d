"""The problem without pipelines, for strategies that cannot plan them.

Those strategies load each segment by itself, but a pipeline's segments work only together. A model
without any other variant is left out; its demand is unserved, and the plan says so.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from services.planner.core.model import Configuration, Model, Problem


def in_one_piece(
    strategy: Callable[[Problem], Configuration],
) -> Callable[[Problem], Configuration]:
    """Return a strategy that never sees a pipeline."""

    @wraps(strategy)
    def planned(problem: Problem) -> Configuration:
        return strategy(without_pipelines(problem))

    return planned


def without_pipelines(problem: Problem) -> Problem:
    """Return a problem without the variants that run as pipelines."""
    if not any(variant.pipeline for model in problem.models for variant in model.variants):
        return problem
    models = tuple(kept for model in problem.models if (kept := _kept(model)).variants)
    names = {model.name for model in models}
    return replace(
        problem,
        models=models,
        catalog=tuple(kind for kind in problem.catalog if kind.stage.of == 1),
        running=tuple(
            each for each in problem.running if each.kind.stage.of == 1 and each.kind.model in names
        ),
    )


def _kept(model: Model) -> Model:
    return replace(model, variants=tuple(v for v in model.variants if not v.pipeline))
