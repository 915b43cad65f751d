"""Bounds of a peer's energy: no honest region is outside, and a liar gains little."""

import pytest

from services.kit.hardware import gpu_types
from services.planner.core.problem.catalog import Place, measure, whole
from services.planner.core.problem.energy_range import efficiency_range, energy_range_j
from services.planner.core.regions.exchange import Grant, HomeWish, ModelFigures, RegionExchange
from services.planner.core.regions.offers import Limits, Offer
from tests.support.planner import fleets

MODEL = fleets.model()
SIZES = (1, 2, 4, 8, 16, 32)
POOLS = {name: fleets.pool(name) for name in gpu_types.names()}


@pytest.mark.parametrize("home", POOLS)
def test_every_variant_on_every_gpu_type_is_within_the_bounds(home: str) -> None:
    """A peer with any GPU of the tables, any variant and any batch is believed as it is."""
    least_j, most_j = energy_range_j(MODEL, [POOLS[home]], SIZES) or (0.0, 0.0)

    found = [
        kind.energy_j
        for pool in POOLS.values()
        for variant in MODEL.variants
        for kind in measure(Place(MODEL, variant, pool, whole(pool)), SIZES, 1)
    ]
    assert least_j <= min(found)
    assert max(found) <= most_j


def test_cores_of_a_cpu_may_be_as_any_gpu() -> None:
    """Nothing is known of their peaks: the widest bounds of all types."""
    low, high = efficiency_range("cores")
    assert all(low <= efficiency_range(name)[0] for name in POOLS)
    assert all(efficiency_range(name)[1] <= high for name in POOLS)


def _home(range_j: tuple[float, float]) -> RegionExchange:
    offer = Offer("home", 10.0, 100.0)
    figures = {"m": ModelFigures(offer, 100.0, 50.0, range_j=range_j)}
    found = RegionExchange("home", {"m": Limits()}, lambda: figures)
    found.round_trip_s |= {"liar": 0.01, "honest": 0.01}
    return found


def test_a_liar_is_no_cleaner_than_hardware_can_be() -> None:
    """Requests that take nothing count as the least that any takes: an honest region goes first."""
    home = _home((2.0, 50.0))
    liar = Grant("m", Offer("liar", 0.0, 100.0), 100.0, 100.0)
    honest = Grant("m", Offer("honest", 5.0, 20.0), 100.0, 100.0)
    for grant in (liar, honest):
        home.learn(grant.offer.region, [grant], 0.0)

    assert [each.region for each in home.forwards(1.0)] == ["honest", "liar"]


def test_a_wish_of_more_energy_than_can_be_has_no_preference_for_it() -> None:
    """A liar's loss is at most that of the worst hardware there; who loses more leads."""
    home = _home((2.0, 50.0))

    def rate_rps(name: str, energy_j: float, intensity: float, now_s: float) -> float:
        wish = HomeWish("m", 60.0, Offer(name, energy_j, intensity))
        (grant,) = home.answer(name, [wish], now_s)
        return grant.rate_rps

    for step in range(400):
        liar = rate_rps("liar", 1e9, 200.0, 5.0 * step)
        honest = rate_rps("honest", 40.0, 400.0, 5.0 * step)
    assert honest > liar
