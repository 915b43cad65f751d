"""`cinquefoil gpuagent smi`, over hardware whose state an agent would have written."""

import json
import os
from contextlib import closing
from pathlib import Path

import pynvml
import pytest
import yaml
from typer.testing import CliRunner

from services.cli.main import app
from services.gpuagent.core.worker_slot import Slot
from services.gpuagent.devices.fake_nvml.library import FakeNvml, gpu_uuid, install
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.gpuagent.state_store import Store
from services.gpuagent.supervision.journal import Journal
from services.kit.mig import Placement
from services.kit.segment import SegmentSpec
from tests.support.paths import ROOT

NODE, TYPES = "node-0", ["a100-40gb", "t4"]
A100, T4 = (gpu_uuid(NODE, index, name) for index, name in enumerate(TYPES))
THREE, ONE = Placement("3g.20gb", 4), Placement("1g.5gb", 0)
EXAMPLE = ROOT / "cinquefoil.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A deployment of one node with an A100 and a T4 that were never switched on."""
    data = yaml.safe_load(EXAMPLE.read_text())
    data["nodes"] = {
        NODE: {"zone": "US-CAL", "simulated": TYPES, "state_dir": str(tmp_path / "state")}
    }
    path = tmp_path / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / NODE


@pytest.fixture
def cut(folder: Path) -> dict[Placement, str]:
    """Two slices on the A100, with a segment on the larger, and one on the T4."""
    library = FakeNvml(NODE, TYPES, state_dir=folder / "hardware")
    restore = install(library)
    with NvmlGpus() as gpus:
        gpus.set_mig_mode(A100, enabled=True)
        made = {placement: gpus.create_slice(A100, placement) for placement in (THREE, ONE)}
        gpus.lock_clock(A100, 990)
    restore()
    spec = SegmentSpec("s-1", "digits", "svc", 4, 2, A100, THREE)
    Store(folder / "journal.json", Journal).save(Journal((spec,)))
    slots = [(A100, 0, made[THREE], "s-1"), (A100, 1, made[THREE], "s-1"), (T4, 0, T4, "s-2")]
    for gpu, slot, slice_uuid, segment in slots:
        with closing(SharedCounters(folder / "ledgers" / f"{gpu}.ledger")) as ledger:
            ledger.write(slot, Slot(os.getpid(), slice_uuid, segment, active_j=500.0))
    return made


def smi(config: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["gpuagent", "smi", "-c", str(config), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_minus_l_prints_what_nvidia_smi_prints(config: Path, cut: dict[Placement, str]) -> None:
    """The columns of the MIG user guide, which scripts cut apart."""
    assert smi(config, "-L").splitlines() == [
        f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {A100})",
        f"  MIG 3g.20gb     Device  0: (UUID: {cut[THREE]})",
        f"  MIG 1g.5gb      Device  1: (UUID: {cut[ONE]})",
        f"GPU 1: Tesla T4 (UUID: {T4})",
    ]


@pytest.mark.usefixtures("cut")
def test_minus_lgi_prints_what_nvidia_smi_prints(config: Path) -> None:
    assert smi(config, "-lgi").splitlines() == [
        "+-------------------------------------------------------+",
        "| GPU instances:                                        |",
        "| GPU   Name             Profile  Instance   Placement  |",
        "|                          ID       ID       Start:Size |",
        "|=======================================================|",
        "|   0  MIG 1g.5gb          19        2          0:1     |",
        "+-------------------------------------------------------+",
        "|   0  MIG 3g.20gb          9        1          4:4     |",
        "+-------------------------------------------------------+",
    ]


@pytest.mark.usefixtures("cut")
def test_minus_lgip_tells_what_still_fits(config: Path) -> None:
    lines = smi(config, "-lgip").splitlines()

    assert (
        "|   0  MIG 1g.5gb        19     3/7        4.75       No     14     0     0   |" in lines
    )
    assert (
        "|   0  MIG 3g.20gb        9     0/2        19.62      No     42     0     0   |" in lines
    )
    assert {len(line) for line in lines} == {79}


def test_minus_lgipp_prints_what_nvidia_smi_prints(config: Path) -> None:
    """As the MIG user guide prints it for an A100."""
    assert smi(config, "-lgipp").splitlines() == [
        "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1",
        "GPU  0 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1",
        "GPU  0 Profile ID 15 Placements: {0,2,4,6}:2",
        "GPU  0 Profile ID 14 Placements: {0,2,4}:2",
        "GPU  0 Profile ID  9 Placements: {0,4}:4",
        "GPU  0 Profile ID  5 Placement : {0}:4",
        "GPU  0 Profile ID  0 Placement : {0}:8",
    ]


@pytest.mark.usefixtures("cut")
def test_the_summary_shows_clocks_and_what_runs_where(config: Path) -> None:
    lines = [line.split() for line in smi(config).splitlines()]

    assert ["0", "NVIDIA", "A100-SXM4-40GB", "on", "990/1410", "55/400"] in [x[:6] for x in lines]
    assert ["1", "Tesla", "T4", "none", "1590/1590", "30/70"] in [x[:6] for x in lines]
    assert ["0", "1g.5gb", "0:1", "-", "-", "-"] in lines
    assert ["0", "3g.20gb", "4:4", "s-1", "digits/svc", "2"] in lines
    assert ["1", "whole", "-", "s-2", "-", "1"] in lines


def test_json_has_everything(config: Path, cut: dict[Placement, str]) -> None:
    document = json.loads(smi(config, "--json"))
    gpu = document["gpus"][0]

    assert document["node"] == NODE
    assert (gpu["uuid"], gpu["gauges"]["clock_mhz"]) == (A100, 990)
    assert gpu["gauges"]["energy_mj"] >= 1_000_000, "what the workers' ledger says is in it"
    assert [device["uuid"] for device in gpu["devices"]] == list(cut.values())
    assert gpu["tenants"][0]["pids"] == [os.getpid()] * 2
    assert len(gpu["profiles"]) == 7


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("option", ["-L", "-lgi", "-lgip", "-lgipp", "--json"])
def test_looking_changes_no_file(config: Path, folder: Path, option: str) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    smi(config, option)

    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_hardware_that_no_agent_ever_started_is_shown_as_it_comes(
    config: Path, folder: Path
) -> None:
    assert "No GPU instances found" in smi(config, "-lgi")
    assert smi(config, "-L").startswith(f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {A100})")
    assert not folder.exists()


@pytest.mark.usefixtures("cut")
def test_a_lost_gpu_is_named_and_the_others_are_shown(config: Path, folder: Path) -> None:
    FakeNvml(NODE, TYPES, state_dir=folder / "hardware").lose(A100)

    assert smi(config, "-L").splitlines() == [
        "GPU 0: lost (it has fallen off the bus: reset it or reboot)",
        f"GPU 1: Tesla T4 (UUID: {T4})",
    ]
    assert ["0", "lost"] in [line.split()[:2] for line in smi(config).splitlines()]


def test_one_list_at_a_time_and_a_node_that_exists(config: Path) -> None:
    for options in (["-L", "-lgi"], ["-lgip", "--json"], ["--node", "node-9"]):
        result = CliRunner().invoke(app, ["gpuagent", "smi", "-c", str(config), *options])
        assert result.exit_code == 2


def test_without_a_driver_the_command_says_so(config: Path) -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        pass
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has a driver")
    data = yaml.safe_load(config.read_text())
    del data["nodes"][NODE]["simulated"]
    config.write_text(yaml.safe_dump(data))
    result = CliRunner().invoke(app, ["gpuagent", "smi", "-c", str(config)])

    assert result.exit_code == 1
    assert "is the NVIDIA driver installed?" in result.output
