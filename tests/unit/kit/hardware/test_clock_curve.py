"""The clock curves against the measurements that they were fitted to, and against physics."""

import csv
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.hardware import gpu_types
from services.kit.hardware.clock_curve import RATIOS, ClockCurve
from tests.support.paths import PUBLISHED

DATA = PUBLISHED / "gpu_power"
V100 = gpu_types.load("v100").clock_curve
CONSUMER = gpu_types.load("p4").clock_curve
CURVES = (V100, CONSUMER)
V100_IDLE_W = gpu_types.load("v100").idle_power_w

ratios = st.floats(0.1, 1.0)
curves = st.sampled_from(CURVES)


def rows(name: str) -> Iterator[dict[str, str]]:
    """A measured table beside the repository."""
    file = DATA / name
    if not file.is_file():
        pytest.skip(f"no {name} in {DATA}")
    with file.open(newline="") as lines:
        yield from csv.DictReader(lines)


@pytest.mark.parametrize(
    ("clock_mhz", "time", "total_power"),
    [(945, 1.27, 0.616), (705, 1.87, 0.487), (405, 4.95, 0.289)],
)
def test_the_v100s_medians_come_out_as_time_and_total_power(
    clock_mhz: float, time: float, total_power: float
) -> None:
    """The median kernel draws 163 W at 1380 MHz, 25 W of them idle: idle power counts once."""
    ratio, full_w = clock_mhz / 1380, 163.0
    modelled_w = V100_IDLE_W + (full_w - V100_IDLE_W) * V100.power_ratio(ratio)
    assert V100.time_ratio(ratio) == pytest.approx(time, rel=0.02)
    assert modelled_w / full_w == pytest.approx(total_power, rel=0.08)


def test_every_kernels_total_power_is_within_the_stated_error_on_a_v100() -> None:
    """Idle + active against 20 kernels at ten clocks, from what each draws at the highest."""
    measured = {
        ((row["benchmark"], row["argNo"], row["kernel"]), int(row["sm_clock_mhz"])): row["power_w"]
        for row in rows("dvfs_v100_kernels.csv")
    }
    errors = []
    for (kernel, clock_mhz), power_w in measured.items():
        full_w = float(measured[kernel, 1380])
        modelled_w = V100_IDLE_W + (full_w - V100_IDLE_W) * V100.power_ratio(clock_mhz / 1380)
        errors.append(abs(modelled_w / float(power_w) - 1))
        assert errors[-1] < (0.25 if clock_mhz >= 1380 / 2 else 0.39), (kernel, clock_mhz)
    assert sorted(errors)[len(errors) // 2] < 0.06


def test_every_kernels_total_power_is_within_the_stated_error_on_a_consumer_gpu() -> None:
    """30 kernels at five clocks; 10 W idle is assumed, far below what any of them draws."""
    measured = {
        ((row["app"], row["argNo"], row["kernel"]), int(row["core_clock_mhz"])): row["power_w"]
        for row in rows("dvfs_gtx1080ti_kernels.csv")
        if row["mem_clock_mhz"] == "5000"
    }
    for (kernel, clock_mhz), power_w in measured.items():
        full_w = float(measured[kernel, 2000])
        modelled_w = 10.0 + (full_w - 10.0) * CONSUMER.power_ratio(clock_mhz / 2000)
        assert modelled_w == pytest.approx(float(power_w), rel=0.09), (kernel, clock_mhz)


@pytest.mark.parametrize(
    ("gpu", "idle_w", "without", "error"),
    [
        ("A100", gpu_types.load("a100-40gb").context_power_w, {"vit"}, 0.07),
        ("H100", 70.0, set(), 0.29),  # assumed: an NVL board, not the SXM of our table
    ],
)
def test_published_optima_of_whole_models_are_within_the_stated_error(
    gpu: str, idle_w: float, without: set[str], error: float
) -> None:
    """Total power at the optimum, from that at the highest clock.

    On that A100 the ViT draws less than an idle SXM board: there is nothing to compare.
    """
    for row in rows("dvfs_edp_optimum_v100_a100_h100.csv"):
        if row["gpu"] != gpu or row["workload"] in without:
            continue
        power_w = float(row["optimal_energy_edp_joules"]) / float(row["optimal_timing_edp_seconds"])
        longer = 1 + float(row["performance_vs_max_edp_percent"]) / 100
        full_w = power_w * longer / (1 - float(row["energy_savings_edp_percent"]) / 100)
        ratio = float(row["optimal_frequency_edp_mhz"]) / float(row["max_frequency_mhz"])
        modelled_w = idle_w + (full_w - idle_w) * V100.power_ratio(ratio)
        assert modelled_w == pytest.approx(power_w, rel=error), row["workload"]


@given(curve=curves, ratio=ratios, more=ratios)
def test_power_never_falls_as_the_clock_rises_and_time_never_grows(
    curve: ClockCurve, ratio: float, more: float
) -> None:
    """At the highest clock both are 1."""
    low, high = sorted((ratio, more))
    assert 0 < curve.power_ratio(low) <= curve.power_ratio(high) <= curve.power_ratio(1.0) == 1.0
    assert curve.time_ratio(low) >= curve.time_ratio(high) >= curve.time_ratio(1.0) == 1.0


@given(curve=curves, sensitivity=st.floats(0, 1), ratio=ratios)
def test_the_thriftiest_clock_takes_the_least_energy_and_was_measured(
    curve: ClockCurve, sensitivity: float, ratio: float
) -> None:
    """Of those that were measured: no lower one is ever recommended."""
    best = curve.thriftiest(sensitivity, (*RATIOS, ratio))
    least = curve.energy_ratio(sensitivity, best)
    assert best >= curve.lowest
    assert least <= 1.0
    assert ratio < curve.lowest or least <= curve.energy_ratio(sensitivity, ratio)


def test_the_saving_of_the_median_kernel_is_as_measured() -> None:
    """1.47x in the kernels' median at their ten clocks; 1.52x by the curve."""
    assert 1 / V100.energy_ratio(1.0, V100.thriftiest(1.0)) == pytest.approx(1.47, rel=0.04)


def test_an_unknown_gpu_saves_no_more_than_a_consumer_gpu() -> None:
    """Nothing is promised of a GPU that was not measured: compute-bound work keeps its clock."""
    assert gpu_types.curve_of(None) == CONSUMER
    assert gpu_types.curve_of(gpu_types.load("a100-80gb").performance) == V100
    assert CONSUMER.thriftiest(1.0) == 1.0
