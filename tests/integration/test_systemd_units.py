"""The units for systemd: they load, give nothing away, and run what there is."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from services.cli.main import app
from services.kit.config.loader import load
from tests.support.paths import ROOT

UNITS = ROOT / "deploy/systemd"
NAMES = sorted(each.stem for each in UNITS.glob("*.service"))

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian: systemd)"
)


def setting(unit: str, name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", (UNITS / f"{unit}.service").read_text(), re.MULTILINE)
    assert found is not None, f"{unit} lacks {name}"
    return found[1]


def analyzed(folder: Path, *words: str) -> str:
    """Run systemd-analyze on copies whose program exists; return what it says."""
    copy = folder / "units"
    shutil.copytree(UNITS, copy)
    for unit in copy.glob("*.service"):
        text = unit.read_text()
        unit.write_text(text.replace("/opt/cinquefoil/bin/cinquefoil", sys.executable))
    ended = subprocess.run(
        ["systemd-analyze", *words, *(f"{name}.service" for name in NAMES)],
        capture_output=True,
        text=True,
        cwd=copy,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{copy}:", "SYSTEMD_COLORS": "0"},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@needs_systemd
def test_units_load_without_a_warning(tmp_path: Path) -> None:
    """With the drop-in that all of them share: a mistyped setting would be a warning."""
    assert analyzed(tmp_path, "verify", "--man=no") == ""


@needs_systemd
def test_a_unit_that_is_taken_over_gives_little(tmp_path: Path) -> None:
    """Systemd's own exposure level, 0 (none) .. 10: at most 2.5, "OK", also of the agent."""
    analyzed(tmp_path, "security", "--offline=yes", "--threshold=25", "--no-pager")


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_runs_a_command_as_a_user_of_its_own(name: str) -> None:
    program, *words = setting(name, "ExecStart").split()
    command = typer.main.get_command(app)
    for word in (each for each in words if not each.startswith("$")):
        command = command.commands[word]  # type: ignore[attr-defined] # a group
    users = re.findall(
        r"^u (\S+)", (UNITS / "sysusers.d/cinquefoil.conf").read_text(), re.MULTILINE
    )

    assert program == "/opt/cinquefoil/bin/cinquefoil"
    assert setting(name, "User") == name
    assert sorted(users) == NAMES


def test_services_report_when_they_have_started_and_reload_without_procps() -> None:
    """Only `models fetch`, which ends by itself, is not looked after."""
    reporting = {name for name in NAMES if setting(name, "Type") == "notify"}
    shared = (UNITS / "cinquefoil-.service.d/hardening.conf").read_text()

    assert reporting == {*NAMES} - {"cinquefoil-models"}
    assert all(int(setting(name, "WatchdogSec")) >= 30 for name in reporting)
    assert 'ExecReload=/bin/sh -c "kill -HUP ${MAINPID}"' in shared


def test_the_example_keeps_state_where_its_unit_may_write() -> None:
    deployment = load(UNITS / "cinquefoil.yaml")
    assert deployment.join is not None
    for service, path in {
        "carbon": deployment.carbon.cache_dir,
        "planner": Path(deployment.planner.database),
        "router": deployment.router.routing_file or Path(),
        "gpuagent": deployment.join.state_dir,
        "models": deployment.model_cache.folder,
    }.items():
        folder = setting(f"cinquefoil-{service}", "StateDirectory")
        assert Path("/var/lib", folder) in (path, *path.parents)
