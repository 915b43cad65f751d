"""The ledger of observed workloads: parts sum to the meter, whatever is read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.observation.core.ledger import (
    MAX_WORKLOADS,
    OTHERS,
    PARK_S,
    GpuLedger,
    Observation,
)

IDLE_W, CONTEXT_W, MAX_W = 70.0, 120.0, 700.0
NAMES = st.sampled_from("abcd")
ODD = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0])
ACTIVE = st.dictionaries(NAMES, st.floats(0.0, 1e6) | ODD, max_size=4)
MEMORY = st.dictionaries(NAMES, st.integers(0, 2**40), max_size=4)
READINGS = st.lists(
    st.tuples(st.floats(-5.0, 30.0), st.floats(-1e5, 1e5) | ODD, ACTIVE, MEMORY), max_size=30
)


def ledger() -> GpuLedger:
    return GpuLedger(IDLE_W, CONTEXT_W, MAX_W)


def observe(
    found: GpuLedger, steps: list[tuple[float, float, dict[str, float]]], **given: float | None
) -> None:
    """Observe steps of (seconds, joules, activity); each workload holds a byte."""
    now_s, energy_j = 100.0, 5000.0
    found.observe(Observation(now_s, energy_j))
    for length_s, more_j, active in steps:
        now_s, energy_j = now_s + length_s, energy_j + more_j
        memory = dict.fromkeys(active, 1)
        found.observe(Observation(now_s, energy_j, active, memory, "process_utilization", **given))


@given(READINGS)
def test_parts_sum_to_the_meter_and_none_is_negative(
    readings: list[tuple[float, float, dict[str, float], dict[str, int]]],
) -> None:
    """Clocks that jump, counters that reset, processes that come and go, NaN: nothing is lost."""
    found, now_s, energy_j = ledger(), 0.0, 0.0
    for length_s, more_j, active, memory in readings:
        now_s, energy_j = now_s + length_s, energy_j + more_j
        found.observe(Observation(now_s, energy_j, active, memory, "process_utilization", 0.5, 300))
        if not math.isfinite(energy_j):
            energy_j = 0.0
    found.settle()
    entries = found.workloads.values()
    parts = [found.idle_j, found.unattributed_j, *(each.active_j for each in entries)]
    assert all(part >= 0 for part in parts)
    assert math.fsum(parts) == pytest.approx(found.total_j, rel=1e-9, abs=1e-6)
    assert sum(each.idle_share_j for each in entries) <= found.idle_j * (1 + 1e-9) + 1e-6
    assert sum(each.carbon_gco2e for each in entries) <= found.carbon_gco2e * (1 + 1e-9) + 1e-9


def test_active_energy_is_shared_by_activity() -> None:
    found = ledger()
    observe(found, [(2.0, 2 * 420.0, {"a": 30.0, "b": 10.0})] * 10)
    assert found.workloads["a"].active_j == pytest.approx(0.75 * 10 * 600)
    assert found.workloads["b"].active_j == pytest.approx(0.25 * 10 * 600)


def test_a_sample_that_comes_late_explains_the_energy_before_it() -> None:
    """The driver's samples lag by up to a second: energy waits for them."""
    found = ledger()
    observe(found, [(2.0, 1000.0, {"a": 0.0}), (2.0, 240.0, {"a": 50.0})])
    assert found.workloads["a"].active_j == pytest.approx(760.0)
    assert found.unattributed_j == 0


def test_energy_of_no_sample_is_nobodys_in_the_end() -> None:
    found = ledger()
    observe(found, [(2.0, 1000.0, {"a": 50.0})] + [(2.0, 1000.0, {"a": 0.0})] * 5)
    found.settle()
    assert found.unattributed_j > 0
    assert found.workloads["a"].active_j == pytest.approx(760.0)


def test_idle_power_is_learnt_where_nothing_computes() -> None:
    """A warm board draws more than its type says, and no workload is charged for it."""
    found = ledger()
    observe(found, [(2.0, 2 * 131.0, {"a": 0.0})] * 12)
    assert found.idle_w(has_context=True) == pytest.approx(131.0)
    assert found.idle_is_measured(has_context=True)
    assert not found.idle_is_measured(has_context=False)


def test_windows_beside_computation_teach_no_idle_power() -> None:
    found = ledger()
    observe(found, [(2.0, 800.0, {"a": 0.0}), (2.0, 800.0, {"a": 50.0})] * 12)
    assert not found.idle_is_measured(has_context=True)


def test_a_step_that_no_gpu_can_draw_is_refused() -> None:
    found = ledger()
    observe(found, [(2.0, 1e9, {"a": 1.0}), (2.0, 240.0, {"a": 0.0})])
    assert found.refused_j == 1e9
    assert found.total_j == 240.0


def test_workloads_are_bounded() -> None:
    """A machine that starts thousands of programs keeps some entries, and the energy of all."""
    found = ledger()
    observe(found, [(2.0, 1000.0, {f"w{number}": 1.0}) for number in range(3 * MAX_WORKLOADS)])
    assert len(found.workloads) <= MAX_WORKLOADS + 1
    active_j = sum(each.active_j for each in found.workloads.values())
    assert active_j == pytest.approx(3 * MAX_WORKLOADS * 760.0)
    assert found.workloads[OTHERS].active_j > 0


def test_time_without_work_counts_after_the_first_minute_of_each_stretch() -> None:
    found = ledger()
    quiet = [(2.0, 240.0, {"a": 0.0})] * 50
    observe(found, [*quiet, (2.0, 800.0, {"a": 5.0}), *quiet])
    assert found.parkable_s == pytest.approx(2 * (100.0 - PARK_S))


def test_emissions_follow_the_intensity() -> None:
    found = ledger()
    observe(found, [(2.0, 840.0, {"a": 1.0})], gco2e_per_kwh=360.0)
    assert found.carbon_gco2e == pytest.approx(840.0 / 1e4)
    assert found.workloads["a"].carbon_gco2e == pytest.approx(840.0 / 1e4)
    assert found.known_j == found.total_j


def test_power_that_the_driver_shows_no_process_for_is_not_idle() -> None:
    found = ledger()
    observe(found, [(2.0, 2 * 520.0, {"a": 0.0})] * 12)
    found.settle()
    assert not found.idle_is_measured(has_context=True)
    assert found.unattributed_j == pytest.approx(12 * 2 * 400.0)
