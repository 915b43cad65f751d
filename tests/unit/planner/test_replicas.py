"""Replicas of servers that are not ours."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Objective, ServerPool
from services.kit.profiles.core.language import LanguageProfile
from services.planner.core.model import Model, Variant
from services.planner.core.replicas import wanted
from tests.support.examples import examples

SIZES = (1, 4, 16)
ZONES = {"DE": 300.0, "FR": 50.0}
POOL = {"variant": "v", "gpu": "h100-80gb", "zone": "DE", "slots": 32, "replicas_max": 8}


def model(**pools: dict[str, Any]) -> Model:
    variant = Variant("v", 0.8, LanguageProfile.of(8.0))
    servers = {name: ServerPool.model_validate(POOL | each) for name, each in pools.items()}
    return Model("chat", 30.0, 95.0, 1.0, (variant,), servers=servers)


def number(of: Model, rate_rps: float, **intensity: float) -> dict[str, int]:
    return dict(wanted(of, rate_rps, ZONES | intensity, Objective(), SIZES).by_pool)


@examples(0.2)
@given(st.floats(0.01, 40), st.floats(1, 3))
def test_more_load_never_wants_fewer_servers(rate_rps: float, times: float) -> None:
    one = model(here={})

    assert number(one, rate_rps)["here"] <= number(one, rate_rps * times)["here"]


def test_no_load_wants_the_least_and_too_much_the_most() -> None:
    assert number(model(here={"replicas_min": 0}), 0.0) == {"here": 0}
    assert number(model(here={"replicas_min": 2}), 0.0) == {"here": 2}
    flooded = wanted(model(here={}), 1e4, ZONES, Objective(), SIZES)
    assert (flooded.total, flooded.short) == (8, True)


@pytest.mark.parametrize(("dirty", "clean"), [("DE", "FR"), ("FR", "DE")])
def test_the_pool_with_less_carbon_serves_first_and_the_other_one_the_rest(
    dirty: str, clean: str
) -> None:
    pools = model(
        **{name: {"zone": name, "replicas_min": 0, "replicas_max": 3} for name in ("DE", "FR")}
    )
    intensity = {dirty: 300.0, clean: 50.0}
    little, much = number(pools, 1.0, **intensity), number(pools, 25.0, **intensity)

    assert little == {clean: 1, dirty: 0}
    assert much[clean] == 3
    assert much[dirty] >= 1


def test_a_gpu_that_cannot_hold_the_model_gets_no_load() -> None:
    large = Variant("v", 0.8, LanguageProfile.of(70.0))
    servers = {"small": ServerPool.model_validate(POOL | {"gpu": "l4-24gb", "replicas_min": 0})}
    stuck = Model("chat", 30.0, 95.0, 1.0, (large,), servers=servers)

    found = wanted(stuck, 1.0, ZONES, Objective(), SIZES)

    assert (dict(found.by_pool), found.short) == ({"small": 0}, True)
