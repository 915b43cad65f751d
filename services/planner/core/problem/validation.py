"""Validation of a problem before it is solved; an invalid number is refused by name."""

import math
from collections.abc import Iterable, Iterator

from services.kit.errors import InvalidArgument
from services.planner.core.model import Model, Pool, Problem

Number = tuple[str, float, bool]
"""A field's name, its value, and whether it must be above 0 (else it may be 0)."""


def check(problem: Problem) -> None:
    """Check the numbers and names of a problem.

    An empty fleet, a model that no GPU can serve, an unreachable floor and overload are valid: the
    plan reports unserved load and missed promises.

    Raises:
        InvalidArgument: A number is not finite, or too small; two models have one name; a model
            has no variant.
    """
    names = [model.name for model in problem.models]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument("names of models must be unique", field=f"models[{name}]")
    for model in problem.models:
        if not model.variants:
            raise InvalidArgument("a model needs a variant", field=f"models[{model.name}].variants")
        _check(_model(model))
        if model.slo_percentile >= 100:
            field = f"models[{model.name}].slo_percentile"
            raise InvalidArgument(f"{field} must be below 100", field=field)
    for pool in problem.pools:
        _check(_pool(pool))
    _check(
        (f"running[{segment.segment_id}].share", segment.share, False)
        for segment in problem.running
    )
    _check([("time_limit_s", problem.time_limit_s, True)])


def _model(model: Model) -> Iterator[Number]:
    at = f"models[{model.name}]"
    yield f"{at}.demand_rps", model.demand_rps, False
    yield f"{at}.slo_latency_s", model.slo_latency_s, True
    yield f"{at}.slo_percentile", model.slo_percentile, True
    for variant in model.variants:
        yield f"{at}.variants[{variant.name}].accuracy", variant.accuracy, True
        yield f"{at}.variants[{variant.name}].load_s", variant.load_s, False


def _pool(pool: Pool) -> Iterator[Number]:
    at = f"pools[{pool.type.name}, {pool.zone}]"
    yield f"{at}.pue", pool.pue, True
    yield f"{at}.intensity_gco2e_per_kwh", pool.intensity_gco2e_per_kwh, False
    yield f"{at}.eur_per_kwh", abs(pool.eur_per_kwh), False
    yield f"{at}.idle_power_w", pool.type.idle_power_w, False
    yield f"{at}.context_power_w", pool.type.context_power_w, False
    yield f"{at}.max_power_w", pool.type.max_power_w, False


def _check(numbers: Iterable[Number]) -> None:
    for name, value, positive in numbers:
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            allowed = "above 0" if positive else "0 or more"
            raise InvalidArgument(f"{name} must be {allowed}, got {value}", field=name)
