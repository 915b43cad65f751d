"""State of the simulated library that outlives its process."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.devices.fake_nvml import library
from services.gpuagent.devices.fake_nvml.library import FakeNvml, gpu_uuid, install
from services.kit.errors import FailedPrecondition
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

    assert before_mj == (29 * 100 + 5000) * 1000
    assert after_mj == (29 * 110 + 5000 + 7) * 1000
    assert later_mj == (29 * 111 + 5000 + 6000) * 1000


def test_the_counter_begins_again_with_the_machine_and_counts_nothing_twice(
    start: Start, work: Work, clock: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger's energy of before the restart of the machine is in no reading after it."""
    start(state_dir=tmp_path, clock=clock, activity=lambda _: work)
    work.joules = 5000.0
    mig_gpu()
    (tmp_path / "boot_id").write_text("another")
    monkeypatch.setattr(library, "_BOOT_ID", tmp_path / "boot_id")
    clock.now_s = 3.0

    start(state_dir=tmp_path, clock=clock, activity=lambda _: work)
    clock.now_s += 10
    work.joules += 1.0

    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) == (29 * 10 + 1) * 1000


def test_a_counter_that_went_by_the_wall_clock_goes_on_where_it_stood(
    start: Start, clock: Time, tmp_path: Path
) -> None:
    """State of an agent from before: it is read once by the wall clock, and by it never again."""
    start(state_dir=tmp_path, clock=clock)
    path = tmp_path / f"{gpu_uuid('node', 0, 'a100-40gb')}.json"
    state = json.loads(path.read_text())
    old = {**state, "version": 1, "booted_at_s": time.time() - 1000, "powered_at_s": None}
    path.write_text(json.dumps({"version": old.pop("version"), **old}))

    start(state_dir=tmp_path, clock=clock)
    first_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
    clock.now_s += 10

    assert first_mj == pytest.approx(29 * 1000 * 1000, rel=0.1)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) - first_mj == 29 * 10 * 1000


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


def test_a_file_that_is_not_a_state_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / f"{gpu_uuid('node', 0, 't4')}.json"
    for text in ("{", "[]", json.dumps({"version": 99}), json.dumps({"version": 1})):
        path.write_text(text)
        with pytest.raises(FailedPrecondition, match=path.name):
            FakeNvml("node", ["t4"], state_dir=tmp_path)
