"""The report on a real GPU, end to end on a simulated driver with the CPU computing."""

from pathlib import Path

import pytest

from benchmarks.gpu_report.__main__ import Terms, markdown, report
from benchmarks.gpu_report.engines import onnx_runtime
from benchmarks.gpu_report.networks import ConvNet
from benchmarks.harness import Skipped
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install

TINY = ConvNet("tiny", channels=4, layers=2, size=8)


def test_every_part_is_measured_and_nothing_is_changed(tmp_path: Path) -> None:
    restore = install(FakeNvml("n", ["a100-40gb"], state_dir=tmp_path))
    try:
        found = report(
            Terms(seconds=0.05, networks=(TINY,)), onnx_runtime("CPUExecutionProvider"), "test", []
        )
    finally:
        restore()
    page = markdown(found.tables)

    assert "| equal |" in page
    for title in ("The machine", "Energy: the counter", "Networks on the whole GPU", "Answers"):
        assert f"## {title}" in page
    assert "refused: cannot start MPS" in page or "refused: " in page


def test_without_a_driver_the_report_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pynvml  # noqa: PLC0415 - replaced below

    def absent() -> None:
        raise pynvml.NVMLError_LibraryNotFound(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)

    with pytest.raises(Skipped, match="no NVIDIA driver here"):
        report(Terms(), None, "none", [])


def test_the_networks_cost_what_they_say() -> None:
    """conv-128 is about the analytic model's own network, Inception-V3 with 5.7 GMAC."""
    assert ConvNet("conv-128", 128, 12).gmacs_per_item == pytest.approx(5.1, abs=0.05)
    assert ConvNet("tiny", 1, 1, size=2).gmacs_per_item == pytest.approx(4 * 9 * 3 / 1e9)
