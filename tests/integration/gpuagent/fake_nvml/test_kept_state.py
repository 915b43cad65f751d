"""State of the simulated library that outlives its process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from services.gpuagent.devices.fake_nvml import FakeNvml, gpu_uuid, install
from services.kit.errors import FailedPrecondition
from services.kit.mig import Placement
from tests.support.gpuagent.nvml_calls import (
    A100,
    create_a100,
    gpu,
    mig_gpu,
    mig_uuids,
    read_layout,
)

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Time, Work


def test_mode_instances_and_clocks_survive_the_process(
    start: Start, work: Work, tmp_path: Path
) -> None:
    start(state_dir=tmp_path)
    handle = mig_gpu()
    pynvml.nvmlGpuInstanceCreateComputeInstance(create_a100(handle, "3g.20gb", 4), 2)
    create_a100(handle, "1g.5gb", 0)
    pynvml.nvmlDeviceSetGpuLockedClocks(handle, 705, 705)
    uuids = mig_uuids(handle)

    start(state_dir=tmp_path, activity=lambda _: work)

    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]
    assert read_layout(gpu(), A100) == (Placement("1g.5gb", 0), Placement("3g.20gb", 4))
    assert mig_uuids(gpu()) == uuids
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == 705
    assert work.ratios == [0.5]


def test_energy_goes_on_after_a_restart_even_where_the_meter_starts_again(
    start: Start, work: Work, clock: Time, tmp_path: Path
) -> None:
    start(state_dir=tmp_path, clock=clock, activity=lambda _: work)
    clock.now_s += 100
    work.joules = 5000.0
    mig_gpu()  # a change of state takes the meter's reading with it
    before_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())

    fresh = replace(work, joules=7.0)
    clock.now_s += 10
    start(state_dir=tmp_path, clock=clock, activity=lambda _: fresh)
    after_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
    fresh.joules = 6000.0
    clock.now_s += 1
    later_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())

    assert before_mj == (55 * 100 + 5000) * 1000
    assert after_mj == (55 * 110 + 5000 + 7) * 1000
    assert later_mj == (55 * 111 + 5000 + 6000) * 1000


def test_a_reader_without_a_meter_shows_the_energy_saved_last(
    start: Start, work: Work, clock: Time, tmp_path: Path
) -> None:
    reader = start(state_dir=tmp_path, clock=clock)
    start(state_dir=tmp_path, clock=clock, activity=lambda _: work)
    work.joules = 5000.0
    mig_gpu()

    install(reader)

    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) == 5_000_000


def test_another_process_sees_each_change_as_it_happens(start: Start, tmp_path: Path) -> None:
    """A reader's library, made before the change, shows it; so do its handles."""
    reader = start(state_dir=tmp_path)
    start(state_dir=tmp_path)
    create_a100(mig_gpu(), "4g.20gb", 0)

    install(reader)

    assert read_layout(gpu(), A100) == (Placement("4g.20gb", 0),)


def test_a_file_that_is_no_state_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / f"{gpu_uuid('node', 0, 't4')}.json"
    for text in ("{", "[]", json.dumps({"version": 99}), json.dumps({"version": 1})):
        path.write_text(text)
        with pytest.raises(FailedPrecondition, match=path.name):
            FakeNvml("node", ["t4"], state_dir=tmp_path)
