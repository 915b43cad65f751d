"""The comparison of the protos with those of the last release (`make protos-compatible`)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = "cinquefoil/carbon/v1/carbon.proto"
"""A contract with a field and an rpc to remove."""


def compare(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the target of the Makefile on the protos of a folder."""
    binaries = Path(sys.executable).parent
    command = ["make", "--assume-old=.venv/.dev", f"BIN={binaries}", "protos-compatible"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def protos(tmp_path: Path) -> Path:
    """A copy of this repository's protos and its Makefile."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".dev").touch()
    ignored = shutil.ignore_patterns("*.py", "*.pyi", "__pycache__")
    shutil.copytree(ROOT / "protos", tmp_path / "protos", ignore=ignored)
    return tmp_path


def edit(protos: Path, old: str, new: str) -> None:
    path = protos / "protos" / PLACE
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} stands once in {path}"
    path.write_text(text.replace(old, new))


def test_these_protos_keep_what_was_released(protos: Path) -> None:
    """An older peer understands today's protos."""
    ended = compare(protos)
    assert ended.returncode == 0, ended.stdout


FIELD = "  string source = 7;\n"
RPC = "  rpc ListZones(ListZonesRequest) returns (ListZonesResponse);\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (FIELD, "", 'field "7" with name "source"'),
        (FIELD, "  reserved 7;\n", 'field "7" with name "source"'),
        (FIELD, FIELD.replace("7", "70"), 'field "7" with name "source"'),
        (FIELD, FIELD.replace("source", "provider"), 'from "source" to "provider"'),
        (FIELD, FIELD.replace("string", "bytes"), 'from "string" to "bytes"'),
        (RPC, "", 'RPC "ListZones"'),
    ],
    ids=["removed", "name free", "renumbered", "renamed", "another type", "rpc removed"],
)
def test_what_an_older_peer_would_misread_is_found(
    protos: Path, old: str, new: str, said: str
) -> None:
    """A change that breaks an older peer fails, and the message names it."""
    edit(protos, old, new)
    ended = compare(protos)
    assert ended.returncode != 0
    assert said in ended.stdout


def test_a_field_may_go_where_its_number_and_name_are_reserved(protos: Path) -> None:
    """A reserved removal passes: nothing else will ever be read from an older peer's field."""
    edit(protos, FIELD, '  reserved 7;\n  reserved "source";\n')
    assert compare(protos).returncode == 0


@pytest.mark.parametrize("snapshots", [0, 2])
def test_it_fails_without_the_one_snapshot(protos: Path, snapshots: int) -> None:
    """Nothing to compare with, or a choice of two, is no success."""
    (released,) = (protos / "protos" / "released").iterdir()
    if snapshots:
        shutil.copy(released, released.with_name("9.9.9.txtpb"))
    else:
        released.unlink()
    ended = compare(protos)
    assert ended.returncode != 0
    assert "expected the snapshot of the last release" in ended.stdout
