"""RAPL: packages are summed, wraps carried on, and an unreadable counter is reported."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.gpuagent.devices.rapl import Rapl
from services.kit.errors import Unavailable

RANGE_UJ = 262_143_328_850


@dataclass
class Tree:
    """A powercap tree of ordinary files."""

    root: Path

    def zone(self, folder: str, name: str, energy_uj: int, range_uj: int = RANGE_UJ) -> Path:
        zone = self.root / folder
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "max_energy_range_uj").write_text(f"{range_uj}\n")
        (zone / "energy_uj").write_text(f"{energy_uj}\n")
        return zone / "energy_uj"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def _found(tree: Tree) -> Rapl:
    rapl = Rapl.find(tree.root)
    assert rapl is not None
    return rapl


def test_packages_are_summed_and_nothing_is_counted_twice(tree: Tree) -> None:
    """Cores are part of their package, psys contains it, mmio is the same one again."""
    first = tree.zone("intel-rapl:0", "package-0", 1_000_000)
    second = tree.zone("intel-rapl:1", "package-1", 7_000_000)
    others = [
        tree.zone("intel-rapl:0:0", "core", 0),
        tree.zone("intel-rapl:2", "psys", 0),
        tree.zone("intel-rapl-mmio:0", "package-0", 0),
    ]
    rapl = _found(tree)
    for other in others:
        other.write_text("99000000\n")
    first.write_text("3500000\n")
    second.write_text("8000000\n")

    assert rapl.energy_j() == pytest.approx(3.5)


@given(st.lists(st.integers(0, 9_999), max_size=30), st.integers(0, 9_999))
def test_energy_is_what_was_used_however_often_the_counter_wraps(
    tmp_path_factory: pytest.TempPathFactory, used_uj: list[int], start_uj: int
) -> None:
    tree = Tree(tmp_path_factory.mktemp("rapl"))
    counter = tree.zone("intel-rapl:0", "package-0", start_uj, range_uj=10_000)
    rapl = _found(tree)
    seen = [rapl.energy_j()]
    total_uj = start_uj
    for step_uj in used_uj:
        total_uj += step_uj
        counter.write_text(str(total_uj % 10_000))
        seen.append(rapl.energy_j())

    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(sum(used_uj) / 1e6)


def test_a_machine_without_rapl_has_no_meter(tree: Tree) -> None:
    assert Rapl.find(tree.root) is None
    assert Rapl.find(tree.root / "missing") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_counter_that_only_root_may_read_is_reported_with_the_reason(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 1).chmod(0o000)

    with capture_logs() as logs:
        assert Rapl.find(tree.root) is None
    assert "CVE-2020-8694" in logs[0]["event"]


@pytest.mark.parametrize("content", ["", "many"])
def test_a_counter_that_makes_no_sense_is_no_meter(tree: Tree, content: str) -> None:
    tree.zone("intel-rapl:0", "package-0", 1).write_text(content)

    assert Rapl.find(tree.root) is None


def test_a_counter_that_goes_away_is_reported_and_goes_on_when_it_is_back(tree: Tree) -> None:
    counter = tree.zone("intel-rapl:0", "package-0", 1_000_000)
    rapl = _found(tree)
    counter.unlink()
    with pytest.raises(Unavailable, match="cannot read RAPL"):
        rapl.energy_j()
    counter.write_text("4000000\n")

    assert rapl.energy_j() == pytest.approx(3.0)
