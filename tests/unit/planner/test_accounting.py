"""Every joule is booked once, at the intensity in force when it was reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.accounting import Account, Spent

STEPS = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(0, 1000), st.booleans()), min_size=1, max_size=20
)


def test_a_first_reading_is_where_the_account_begins() -> None:
    account = Account().read({"GPU-a": 5e6}, pue=1.0, intensity_gco2e_per_kwh=100)

    assert account.total == Spent()


def test_a_kilowatt_hour_costs_the_intensity_times_pue() -> None:
    account = Account(meters_j={"GPU-a": 0.0})

    account = account.read({"GPU-a": 3.6e6}, pue=1.5, intensity_gco2e_per_kwh=200)

    assert account.total.energy_j == 3.6e6
    assert account.total.carbon_gco2e == pytest.approx(300)


def test_each_joule_costs_what_it_cost_when_it_was_spent() -> None:
    account = Account(meters_j={"GPU-a": 0.0})

    account = account.read({"GPU-a": 3.6e6}, pue=1, intensity_gco2e_per_kwh=100)
    account = account.read({"GPU-a": 7.2e6}, pue=1, intensity_gco2e_per_kwh=300)

    assert account.total.carbon_gco2e == pytest.approx(100 + 300)


@given(STEPS)
def test_totals_are_the_sum_of_the_steps_through_restarts_of_the_meter(
    steps: list[tuple[float, float, bool]],
) -> None:
    """A meter that starts again from zero loses nothing and never takes anything back."""
    account = Account(meters_j={"GPU-a": 0.0})
    meter_j = energy_j = carbon = 0.0
    for step_j, intensity, restarts in steps:
        # A restart shows only where the meter then stands below its last reading.
        meter_j = step_j if restarts and step_j < meter_j else meter_j + step_j
        before = account.total
        account = account.read({"GPU-a": meter_j}, pue=1.2, intensity_gco2e_per_kwh=intensity)
        energy_j += step_j
        carbon += step_j * 1.2 * intensity / 3.6e6
        assert account.total.energy_j >= before.energy_j
        assert account.total.carbon_gco2e >= before.carbon_gco2e

    assert account.total.energy_j == pytest.approx(energy_j, abs=1e-3)
    assert account.total.carbon_gco2e == pytest.approx(carbon, abs=1e-6)


def test_gpus_of_other_nodes_keep_their_meters() -> None:
    account = Account(meters_j={"GPU-a": 10.0, "GPU-b": 20.0})

    account = account.read({"GPU-a": 15.0}, pue=1, intensity_gco2e_per_kwh=1)

    assert account.meters_j == {"GPU-a": 15.0, "GPU-b": 20.0}
    assert account.total.energy_j == 5.0
