"""Three suites as an operator has them: nothing is lost, and no region has more than it can do."""

import pytest

from benchmarks.places import live

CASES = ("residency", "grids", "cut", "event", "drain")

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.timeout(1800)]


async def test_regions_join_follow_their_grids_and_fail_without_loss() -> None:
    """Every request is answered whatever becomes of a region; all that comes home fits."""
    rows, account = await live.run(CASES)

    assert [row["case"] for row in rows] == ["a region joins", *CASES]
    assert [row["losses"] for row in rows] == [[]] * len(rows)
    assert max(row["worst_load"] for row in rows) <= 1.0
    by_region = account["by_region"]
    assert by_region["home"] > 0
    assert sum(by_region.values()) == pytest.approx(sum(account["by_model"].values()))
