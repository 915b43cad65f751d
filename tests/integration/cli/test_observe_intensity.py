"""The intensity that `observe` counts with: given, a zone's of a file, or none."""

from pathlib import Path

import pytest

from services.cli.observe.intensity import KEY, electricity
from services.kit.errors import InvalidArgument
from tests.support.paths import ROOT

FILE = ROOT / "cinquefoil.yaml"


async def test_a_zone_of_the_deployment_file_has_its_intensity_and_forecast() -> None:
    async with electricity("US-CAL", None, FILE) as grid:
        now = grid.now()
        assert now is not None
        assert "US-CAL" in grid.label
        ahead = grid.day_ahead()
        assert ahead[0] == pytest.approx(now)
        assert min(ahead) < max(ahead)


async def test_a_constant_holds_and_nothing_is_assumed_without_one(tmp_path: Path) -> None:
    async with electricity("", 250.0, tmp_path / "none.yaml") as grid:
        assert grid.now() == 250.0
        assert not grid.day_ahead()
    async with electricity("", None, tmp_path / "none.yaml") as grid:
        assert grid.now() is None
        assert not grid.label


async def test_an_unknown_zone_names_the_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(InvalidArgument, match=f"{KEY}.*--config.*--intensity"):
        async with electricity("XX", None, tmp_path / "none.yaml"):
            pass
