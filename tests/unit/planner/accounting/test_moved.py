"""Energy split by the region of the client: the parts sum to what was metered."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.planner_pb2 import RegionLoad
from services.planner.adapters.region_wire import moved_from
from services.planner.core.accounting.entries import NAMES, EntryKey, Figures
from services.planner.core.accounting.moved import Moved, MovedKey, RegionKey, by_region

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
AMOUNTS = st.floats(0, 1e9)
COUNTS = st.integers(0, 10**6)
FIGURES = st.builds(
    Figures,
    energy_j=AMOUNTS,
    carbon_gco2e=AMOUNTS,
    embodied_gco2e=AMOUNTS,
    base_energy_j=AMOUNTS,
    base_carbon_gco2e=AMOUNTS,
    meter_error_gco2e=st.floats(-1e9, 0),
    requests=COUNTS,
    input_tokens=COUNTS,
)
KEYS = st.builds(EntryKey, st.just(HOUR), st.just(""), st.just(""), st.sampled_from(["", "m", "n"]))
MOVED_KEYS = st.sampled_from(
    [
        MovedKey(HOUR, model, *pair)
        for model in "mn"
        for pair in [("a", "home"), ("b", "home"), ("home", "a"), ("home", "b")]
    ]
)


@given(
    st.dictionaries(KEYS, FIGURES),
    st.dictionaries(MOVED_KEYS, st.builds(Moved, COUNTS, AMOUNTS, AMOUNTS)),
)
def test_parts_sum_to_the_whole_whatever_receipts_say(
    entries: dict[EntryKey, Figures], moved: dict[MovedKey, Moved]
) -> None:
    """Every figure of the meters is in one part, none is below 0; peers' emissions are apart."""
    found = by_region(entries.items(), moved, "home")

    here = [figures for key, figures in found if not key.emitted_in]
    for name in NAMES:
        whole = sum(getattr(each, name) for each in entries.values())
        assert sum(getattr(each, name) for each in here) == pytest.approx(whole, abs=1e-3)
    for key, figures in found:
        assert min(figures.energy_j, figures.carbon_gco2e, figures.requests) >= -1e-3
        assert not key.emitted_in or key.origin == "home"
    away = sum(each.carbon_gco2e for key, each in moved.items() if key.origin == "home")
    emitted = sum(figures.carbon_gco2e for key, figures in found if key.emitted_in)
    assert emitted == pytest.approx(away)


def test_energy_goes_by_receipts_and_base_by_requests() -> None:
    """A quarter of the energy and half of the requests were a peer's; idle energy is of neither."""
    entries = [
        (EntryKey(HOUR, "", "", ""), Figures(energy_j=5.0, idle_j=5.0)),
        (
            EntryKey(HOUR, "", "", "m"),
            Figures(energy_j=100.0, carbon_gco2e=8.0, base_carbon_gco2e=20.0, requests=10),
        ),
    ]
    moved = {
        MovedKey(HOUR, "m", "peer", "home"): Moved(5, 25.0, 2.0),
        MovedKey(HOUR, "m", "home", "peer"): Moved(3, 30.0, 0.5),
    }

    found = dict(by_region(entries, moved, "home"))

    assert found == {
        RegionKey(HOUR, "", ""): Figures(energy_j=5.0, idle_j=5.0),
        RegionKey(HOUR, "", "home"): Figures(
            energy_j=75.0, carbon_gco2e=6.0, base_carbon_gco2e=10.0, requests=5
        ),
        RegionKey(HOUR, "", "peer"): Figures(
            energy_j=25.0, carbon_gco2e=2.0, base_carbon_gco2e=10.0, requests=5
        ),
        RegionKey(HOUR, "peer", "home"): Figures(energy_j=30.0, carbon_gco2e=0.5, requests=3),
    }


@pytest.mark.parametrize("energy_j", [math.nan, math.inf, -1.0])
def test_reports_that_cannot_be_are_not_counted(energy_j: float) -> None:
    """No number, or below 0: nothing; beyond physics: as much as can be."""
    load = RegionLoad(region="peer", model="m", sent=2, sent_j=energy_j, sent_gco2e=1.0)
    assert moved_from(load, HOUR, "home", 1.0) == {}

    load = RegionLoad(
        region="peer", model="m", answered=2**60, answered_j=1e300, answered_gco2e=1e300
    )
    (found,) = moved_from(load, HOUR, "home", 1.0).values()
    assert found.requests == 100_000
    assert found.energy_j <= 1e14
    assert found.carbon_gco2e <= 1e12
