"""Numbers that cannot be are refused by name; hard problems are not."""

import math
from dataclasses import replace

import pytest

from services.kit.config import Objective
from services.kit.errors import InvalidArgument
from services.planner.core.model import Model, Problem
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.validation import check
from tests.support.planner import fleets

MODEL = fleets.model()
PROBLEM = fleets.problem(fleets.fleet((fleets.pool(), 1)), [MODEL])


def test_what_is_merely_hard_passes() -> None:
    """No GPUs, no time to answer in, far too much load, a floor above everything."""
    check(PROBLEM)
    check(replace(PROBLEM, gpus=(), catalog=()))
    check(with_model(replace(MODEL, slo_latency_s=1e-9, demand_rps=1e12)))
    check(replace(PROBLEM, objective=Objective(accuracy_floor=1.0)))


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (replace(MODEL, demand_rps=math.nan), "models[vision].demand_rps"),
        (replace(MODEL, demand_rps=-1.0), "models[vision].demand_rps"),
        (replace(MODEL, demand_rps=math.inf), "models[vision].demand_rps"),
        (replace(MODEL, slo_latency_s=0.0), "models[vision].slo_latency_s"),
        (replace(MODEL, slo_percentile=100.0), "models[vision].slo_percentile"),
        (replace(MODEL, variants=()), "models[vision].variants"),
        (
            replace(MODEL, variants=(replace(MODEL.variants[0], accuracy=math.nan),)),
            "models[vision].variants[v0].accuracy",
        ),
        (
            replace(MODEL, variants=(replace(MODEL.variants[0], load_s=-1.0),)),
            "models[vision].variants[v0].load_s",
        ),
    ],
)
def test_a_number_that_cannot_be_is_named(model: Model, field: str) -> None:
    """Every strategy computes prices first, and so refuses as well."""
    for refuse in (check, prices):
        with pytest.raises(InvalidArgument) as refused:
            refuse(with_model(model))
        assert refused.value.field == field


def test_a_grid_that_cannot_be_is_named() -> None:
    pool = fleets.pool(intensity=math.nan)
    with pytest.raises(InvalidArgument, match=r"a100-40gb, US-CAL.*intensity"):
        check(replace(PROBLEM, gpus=fleets.fleet((pool, 1))))


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="names"):
        check(replace(PROBLEM, models=(MODEL, MODEL)))


def with_model(model: Model) -> Problem:
    return replace(PROBLEM, models=(model,))
