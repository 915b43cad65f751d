"""Advice from observed figures: ranges with a method, or what is missing; never a guess."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from services.cli.observe.advice import Step, advise, parameters_of, shares
from services.cli.observe.figures import Figures, GpuFigures, ServerFigures
from services.kit.hardware import gpu_types

TABLE = gpu_types.load("h100-80gb")


def gpu(index: int = 0, **given: Any) -> GpuFigures:
    """A GPU that computed for a third of ten minutes."""
    found: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "index": index,
        "type": TABLE.name,
        "product_name": TABLE.product_name,
        "energy_j": 150_000.0,
        "idle_j": 72_000.0,
        "unattributed_j": 0.0,
        "carbon_gco2e": 12.5,
        "mean_w": 250.0,
        "idle_w": 120.0,
        "idle_is_measured": True,
        "off_w": 74.0,
        "busy": 0.3,
        "parkable_s": 0.0,
        "held_bytes": 20 * 2**30,
        "memory_bytes": TABLE.memory_bytes,
        "method": "counter",
        "clock_ratio": 1.0,
    }
    return GpuFigures(**(found | given))


def server(**given: Any) -> ServerFigures:
    found: dict[str, Any] = dict.fromkeys(ServerFigures.__slots__)
    found |= {
        "url": "http://127.0.0.1:8000/metrics",
        "server": "vLLM",
        "model": "Qwen/Qwen3-8B",
        "workload": "vllm",
        "gpus": (0,),
        "requests": 300.0,
        "prompt_tokens": 150_000.0,
        "answer_tokens": 75_000.0,
        "mean_running": 8.0,
        "peak_running": 8.0,
        "peak_waiting": 0.0,
        "busy": 0.5,
        "shared_by": 1,
    }
    return ServerFigures(**(found | given))


def figures(*gpus: GpuFigures, servers: tuple[ServerFigures, ...] = ()) -> Figures:
    found = gpus or (gpu(),)
    return Figures(
        since=datetime(2026, 11, 27, tzinfo=UTC),
        observed_s=600.0,
        electricity="300 gCO2e/kWh, given",
        gco2e_per_kwh=300.0,
        cpu_share=0.002,
        gpus=found,
        workloads=(),
        servers=servers,
        minutes=(),
        models={each.uuid: TABLE for each in found},
    )


def step(name: str, seen: Figures, ahead: tuple[float, ...] = ()) -> Step:
    return next(each for each in advise(seen, ahead) if each.name == name)


def test_ranges_lie_within_what_was_drawn() -> None:
    """No step saves more than all the energy, and low is never above high."""
    seen = figures(gpu(0), gpu(1, parkable_s=300.0), servers=(server(),))
    for each in advise(seen, (300.0, 200.0) * 12):
        found = list(shares(each, seen))
        assert found == sorted(found)
        assert all(0 <= share < 1 for share in found)
        assert each.method


def test_lower_clocks_save_active_energy_only() -> None:
    found = step("clocks", figures())
    assert found.low_j is not None
    assert found.high_j is not None
    assert 0 < found.low_j < found.high_j < 78_000


def test_a_busy_gpu_has_no_room_for_lower_clocks() -> None:
    found = step("clocks", figures(gpu(busy=0.99)))
    assert found.low_j is None
    assert "time to spare" in found.method


def test_clocks_that_are_low_already_save_less() -> None:
    high = step("clocks", figures()).high_j
    low = step("clocks", figures(gpu(clock_ratio=0.7))).high_j
    assert high is not None
    assert low is not None
    assert low < high


def test_two_half_empty_gpus_become_one() -> None:
    found = step("consolidation", figures(gpu(0), gpu(1)))
    assert found.low_j == pytest.approx(600 * 46)
    assert found.high_j == 72_000
    assert "1 of 2" in found.action


@pytest.mark.parametrize(
    "second", [{"held_bytes": 75 * 2**30}, {"busy": 0.6}, {"type": "a100-80gb"}]
)
def test_gpus_that_do_not_fit_together_stay(second: dict[str, Any]) -> None:
    assert step("consolidation", figures(gpu(0), gpu(1, **second))).high_j == 0


def test_memory_that_the_driver_hides_is_not_guessed() -> None:
    found = step("consolidation", figures(gpu(0), gpu(1, held_bytes=0)))
    assert found.high_j is None
    assert "memory" in found.method


def test_reduced_precision_needs_a_profile_that_fits_the_meter() -> None:
    """Ten times the profile's energy per token: the profile is not this server's."""
    joules = server_joules()
    fits = step(
        "variants", figures(servers=(server(active_j=75_000 * joules, j_per_token=joules),))
    )
    assert fits.low_j is not None
    assert fits.high_j is not None
    assert 0 < fits.low_j < fits.high_j < 75_000 * joules
    ten = step("variants", figures(servers=(server(active_j=1e6, j_per_token=10 * joules),)))
    assert ten.high_j is None
    assert "does not fit" in ten.method


def server_joules() -> float:
    """Energy per token near the profile's, J."""
    for joules in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6):
        seen = figures(servers=(server(active_j=75_000 * joules, j_per_token=joules),))
        if step("variants", seen).high_j is not None:
            return joules
    raise AssertionError("no energy per token fits")


@pytest.mark.parametrize(
    ("name", "parameters_b"),
    [
        ("Qwen/Qwen3-8B", 8),
        ("SmolLM2-135M-Instruct", 0.135),
        ("meta-llama/Llama-3.1-70B-Instruct-AWQ-INT4", 70),
        ("Mixtral-8x7B", None),
        ("gpt-oss", None),
        ("Qwen3-30B-A3B", None),
        ("", None),
    ],
)
def test_parameters_by_name(name: str, parameters_b: float | None) -> None:
    """A model of experts has two numbers, or a product: neither is taken for all parameters."""
    assert parameters_of(name) == parameters_b


def test_waiting_saves_carbon_where_a_forecast_says_so() -> None:
    found = step("time", figures(), (400.0,) * 12 + (100.0,) * 12)
    assert found.carbon_share is not None
    assert 0 < found.carbon_share[1] <= 0.1
    assert step("time", figures()).carbon_share is None
    assert step("time", replace(figures(), gco2e_per_kwh=None)).carbon_share is None
