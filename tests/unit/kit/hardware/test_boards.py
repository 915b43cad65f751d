"""Boards are recognised by name, else by chip, else estimated by what their driver says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.hardware import gpu_types
from services.kit.hardware.boards import Board, DriverReading, identify
from tests.support.boards import READINGS

BY_NAME = {each.product_name: each for each in READINGS}

ESTIMATED = {
    "NVIDIA B300 SXM6 AC": "gb200-186gb",
    "NVIDIA GB300": "gb200-186gb",
    "NVIDIA GB10": "l40s-48gb",
    "NVIDIA L40": "l40s-48gb",
    "NVIDIA GeForce RTX 4090": "l4-24gb",
    "NVIDIA A40": "a10-24gb",
    "NVIDIA RTX A6000": "a10-24gb",
    "Tesla P40": "p4",
}
"""By product name: the type that an estimate is made from."""

NAMED = {
    "NVIDIA A100-PCIE-40GB": "a100-40gb",
    "NVIDIA A100-SXM-64GB": "a100-64gb",
    "NVIDIA A800-SXM4-80GB": "a100-80gb",
    "NVIDIA H100 NVL": "h100-94gb",
    "NVIDIA H800": "h100-80gb",
    "NVIDIA H20-3e": "h20-140gb",
    "NVIDIA H200 NVL": "h200-141gb",
    "NVIDIA GB200": "gb200-186gb",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-96gb",
    "Tesla V100-SXM2-32GB": "v100-32gb",
    "GRID A100-10C": "a100-10gb",
    "NVIDIA A100-40C": "a100-40gb",
    "NVIDIA GB10": "nvidia-gb10",
}


def board(product_name: str) -> Board:
    return identify(BY_NAME[product_name])


def test_only_boards_without_a_table_and_without_a_known_chip_are_estimated() -> None:
    """Of all real product names: these, each from a type with the same kind of cores."""
    found = {
        each.product_name: identify(each).performance.like
        for each in READINGS
        if identify(each).estimated
    }
    assert found == ESTIMATED


@pytest.mark.parametrize(("product_name", "name"), NAMED.items())
def test_a_board_has_its_tables_name_where_its_memory_is_the_same(
    product_name: str, name: str
) -> None:
    """Another size of memory is another type: tables measured elsewhere may not fit."""
    assert board(product_name).name == name


@pytest.mark.parametrize(
    ("product_name", "sheet_tflops", "error"),
    [
        ("Tesla V100-SXM2-16GB", 125.0, 0.01),
        ("NVIDIA H100 PCIe", 756.5, 0.01),
        ("NVIDIA H200 NVL", 835.5, 0.08),
        ("NVIDIA GB200", 2500.0, 0.04),
        ("NVIDIA A40", 149.7, 0.01),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 503.8, 0.09),
        ("NVIDIA GB10", 125.0, 0.07),
        ("NVIDIA A100-40C", 312.0, 0.001),
    ],
)
def test_peaks_by_multiprocessors_and_clock_are_those_of_data_sheets(
    product_name: str, sheet_tflops: float, error: float
) -> None:
    """Dense FP16 of boards that no table describes."""
    found = board(product_name).performance
    assert found.fp16_tflops == pytest.approx(sheet_tflops, rel=error)


def test_what_a_driver_does_not_say_is_the_types() -> None:
    """A vGPU has no power limit, often no clocks."""
    bare = replace(BY_NAME["NVIDIA A100-40C"], sm_count=None, max_clock_mhz=None)
    table = gpu_types.load("a100-40gb")
    found = identify(bare)
    assert found.performance == table.performance
    assert (found.sm_count, found.max_power_w) == (table.sm_count, table.max_power_w)
    assert (found.idle_power_w, found.context_power_w) == (
        table.idle_power_w,
        table.context_power_w,
    )


@given(
    capability=st.tuples(st.integers(3, 14), st.integers(0, 9)),
    sm_count=st.integers(1, 300),
    clock_mhz=st.integers(100, 4000),
    limit_w=st.none() | st.floats(10, 2000),
)
def test_no_board_is_too_strange_to_be_estimated(
    capability: tuple[int, int], sm_count: int, clock_mhz: int, limit_w: float | None
) -> None:
    """Every figure that plans need is positive, and powers are in order."""
    found = identify(
        DriverReading(
            product_name="Some GPU 9000",
            memory_bytes=2**34,
            compute_capability=capability,
            sm_count=sm_count,
            max_clock_mhz=clock_mhz,
            limit_w=limit_w,
        )
    )
    assert found.estimated
    assert found.name == "some-gpu-9000"
    assert found.performance.fp16_tflops > 0
    assert found.performance.memory_gb_per_s > 0
    assert 0 < found.idle_power_w <= found.context_power_w < found.max_power_w
