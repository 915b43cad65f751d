"""The analytic profile on CPU cores."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.profile import SliceShape

CORES = 8
NETWORK = AnalyticProfile(gmacs_per_item=1.0, memory_mib=100, memory_mib_per_item=10)


def shape(cores: int = 1, *, gmacs_per_s: float = 50.0) -> SliceShape:
    return SliceShape(
        gpu=f"cpu-{CORES}",
        profile=f"{cores}c",
        compute_slices=cores,
        sm_count=cores,
        gpu_sm_count=CORES,
        memory_bytes=cores * 2**30,
        context_power_w=6.0,
        max_power_w=26.0,
        core_gmacs_per_s=gmacs_per_s,
    )


def latency_s(where: SliceShape, batch_size: int = 1, processes: int = 1) -> float:
    cost = NETWORK.batch(where, batch_size, processes)
    assert cost is not None
    return cost.latency_s


def test_a_network_takes_its_arithmetic_at_a_share_of_the_measured_speed() -> None:
    """1 GMAC at half of 50 GMAC/s: 40 ms, and a little."""
    assert latency_s(shape()) == pytest.approx(0.04, rel=0.01)
    assert latency_s(shape(gmacs_per_s=100.0)) == pytest.approx(0.02, rel=0.02)


@given(st.integers(1, CORES - 1), st.integers(1, 32), st.integers(1, 4))
def test_more_cores_are_faster_and_never_more_than_in_proportion(
    cores: int, batch_size: int, processes: int
) -> None:
    roomy = [replace(shape(count), memory_bytes=2**40) for count in (cores, cores + 1)]
    fewer, more = (latency_s(each, batch_size, processes) for each in roomy)
    assert more < fewer <= more * (cores + 1) / cores


@given(st.integers(1, CORES), st.integers(1, 4))
def test_processes_share_the_cores_and_their_power(cores: int, processes: int) -> None:
    """All processes busy draw what one does: the cores are busy either way."""
    where = replace(shape(cores), memory_bytes=2**40)
    alone, shared = NETWORK.batch(where, 1, 1), NETWORK.batch(where, 1, processes)
    assert alone is not None
    assert shared is not None
    assert shared.power_w * processes == pytest.approx(alone.power_w)
    assert alone.power_w == pytest.approx(20.0 * cores / CORES)
    assert processes / shared.latency_s <= 1 / alone.latency_s * 1.05


def test_what_does_not_fit_into_memory_has_no_cost() -> None:
    assert NETWORK.batch(shape(), 90, 1) is not None
    assert NETWORK.batch(shape(), 100, 1) is None
    assert NETWORK.batch(shape(), 1, 11) is None
