"""The problem of segments on one slice each, for strategies that plan no others.

Those strategies load each segment by itself and give each one slice: a pipeline's segments work
only together, and a model on several GPUs has slices on all of them. A model without any other
variant is left out; its demand is unserved, and the plan says so.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from services.planner.core.model import Configuration, Model, Problem, Variant


def on_single_slices(
    strategy: Callable[[Problem], Configuration],
) -> Callable[[Problem], Configuration]:
    """Return a strategy that never sees a pipeline, or a variant on several GPUs."""

    @wraps(strategy)
    def planned(problem: Problem) -> Configuration:
        return strategy(single_slices(problem))

    return planned


def single_slices(problem: Problem) -> Problem:
    """Return a problem without the variants that run as pipelines or on several GPUs."""
    if all(of_one_slice(variant) for model in problem.models for variant in model.variants):
        return problem
    models = tuple(kept for model in problem.models if (kept := _kept(model)).variants)
    names = {model.name for model in models}
    return replace(
        problem,
        models=models,
        catalog=tuple(kind for kind in problem.catalog if kind.stage.of == kind.gpus == 1),
        running=tuple(
            each
            for each in problem.running
            if each.kind.stage.of == each.kind.gpus == 1 and each.kind.model in names
        ),
    )


def of_one_slice(variant: Variant) -> bool:
    """Return whether a variant's segments have one slice each, and work alone."""
    return not variant.pipeline and variant.gpus == 1


def _kept(model: Model) -> Model:
    return replace(model, variants=tuple(filter(of_one_slice, model.variants)))
