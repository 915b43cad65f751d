"""Contents of the two distributions, and their references to one another."""

import re
import tomllib
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from services.cli.main import app
from services.kit.config.loader import load
from services.local import example
from tests.support.paths import ROOT


def project(file: str) -> Any:
    return tomllib.loads((ROOT / file).read_text())


SUITE, PROTOS = project("pyproject.toml"), project("protos/pyproject.toml")


def name_of(requirement: str) -> str:
    found = re.match(r"[\w-]+", requirement)
    assert found is not None, requirement
    return found[0]


def members(group: str) -> set[str]:
    found: set[str] = set()
    for entry in SUITE["dependency-groups"][group]:
        found |= members(entry["include-group"]) if isinstance(entry, dict) else {entry}
    return found


def test_both_distributions_have_one_version() -> None:
    version = SUITE["project"]["version"]
    assert PROTOS["project"]["version"] == version
    assert f"cinquefoil-protos=={version}" in SUITE["project"]["dependencies"]


def test_images_of_all_groups_have_what_the_suite_depends_on() -> None:
    """Dependency groups and [project] say the same, so that a slim image lacks nothing."""
    extras = SUITE["project"]["optional-dependencies"]
    everything = [*SUITE["project"]["dependencies"], *extras["predictor"]]
    everything += [*extras["telemetry"], *extras["train"]]
    ours = {"cinquefoil", "cinquefoil-protos"}
    assert members("all") == {name_of(each) for each in everything} - ours


def test_images_install_pinned_versions_of_which_every_file_has_its_hash() -> None:
    """lock.txt names what constraints.txt pins, and no address; `make lock` writes it."""
    pins = set((ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines())
    entries = re.split(r"\n(?=\w)", (ROOT / "lock.txt").read_text().strip())
    locked = {entry.split(None, 1)[0].lower().replace("_", "-") for entry in entries}

    assert locked <= pins
    assert all("--hash=sha256:" in entry and "://" not in entry for entry in entries)
    direct = (name_of(each).lower() for each in members("all") | members("weights"))
    assert {*direct, *map(name_of, members("build"))} <= set(map(name_of, locked))


def test_what_a_subscriber_installs_takes_no_name_but_cinquefoil() -> None:
    wheel = "wheel"
    assert PROTOS["tool"]["hatch"]["build"]["targets"][wheel]["packages"] == ["cinquefoil"]
    assert set(SUITE["tool"]["hatch"]["build"]["targets"][wheel]["packages"]) == {
        "services",
        *(f"protos/{each}" for each in ("envoy_ext_proc", "inference", "keda", "podresources")),
    }


def test_the_wheel_carries_the_example_where_init_looks_for_it() -> None:
    carried = SUITE["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for source, target in carried.items():
        folder, _, name = target.rpartition("/")
        assert folder == "services/local/example"
        assert example.content(name) == (ROOT / source).read_text()


def test_init_writes_what_is_missing_and_keeps_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text("mine")

    first = CliRunner().invoke(app, ["init", str(tmp_path)])
    second = CliRunner().invoke(app, ["init", str(tmp_path)])

    assert first.output.replace("\n", "") == f"wrote {tmp_path / 'cinquefoil.yaml'}"
    assert second.output == "every file exists already\n"
    assert (tmp_path / "infer.py").read_text() == "mine"
    assert load(tmp_path / "cinquefoil.yaml").models


def test_without_a_deployment_file_init_is_proposed(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["status", "--config", str(tmp_path / "cinquefoil.yaml")])

    assert result.exit_code == 2
    assert "`cinquefoil init` writes an example deployment." in result.stderr


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])

    assert result.output == f"cinquefoil {SUITE['project']['version']}\n"
