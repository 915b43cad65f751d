"""Reports in one file, in Chromium, from the disk."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from cinquefoil.planner.v1.planner_pb2 import AccountEntry
from services.cli.account import by_hour, rows
from services.console.page import Account, Band, Bands, Chart, Line, Report, Table, write

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
api = pytest.importorskip("playwright.async_api", reason="pip install playwright")
expect = api.expect

HOSTILE = "</script><script>document.title='owned'</script><b>&"


def entries() -> Iterator[AccountEntry]:
    """Three hours of two models."""
    for hour in range(3):
        for model in ("chat", "digits"):
            figures = {"energy_j": 9e3, "carbon_gco2e": 1.0 + hour, "base_carbon_gco2e": 5.0}
            entry = AccountEntry(model=model, requests=10, **figures)  # type: ignore[arg-type]
            entry.hour.FromDatetime(datetime(2026, 3, 1, hour, tzinfo=UTC))
            yield entry


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report with every kind of part, and names that try to be markup."""
    found, times_s = list(entries()), [1.7e9 + 60 * n for n in range(5)]
    lines = [Line(HOSTILE, [1, None, 3, 4, 5]), Line("objective", [4] * 5, dashed=True)]
    path = tmp_path_factory.mktemp("report") / "report.html"
    parts: list[Chart | Bands | Table | Account] = [
        Table("Figures", ("quantity", ">BASE"), [("requests", HOSTILE)]),
        Chart("Latency", "ms", times_s, lines, stepped=True, from_zero=False),
        Chart("Shares", "%", times_s, lines, stacked=True, marks_s=[times_s[2]]),
        Bands("Slices", 7, [Band(times_s[0], times_s[4], 0, 4, HOSTILE, "oklch(0.6 0.1 250)")]),
        Account("model", rows(found, "model"), by_hour(found, "model"), "2026-03-01T02:30:00Z", {}),
        Table("Plans", (">plan", "why"), [("1", HOSTILE)], folded=True),
    ]
    write(Report(HOSTILE, "Half was saved.", "About it.", parts), path)
    return path.as_uri()


async def test_a_report_shows_all_of_its_parts_and_text_stays_text(
    page: "Page", report: str
) -> None:
    await page.goto(report)

    await expect(page.locator("h1")).to_have_text(HOSTILE)
    await expect(page.locator(".chart canvas")).to_have_count(3)
    await expect(page.locator(".slots .bands rect")).to_have_count(1)
    await expect(page.get_by_text("Half was saved.")).to_be_visible()
    await expect(page.get_by_text("Against BASE")).to_contain_text("were saved")
    await page.get_by_text("Plans", exact=True).click()
    await expect(page.locator("table").last).to_contain_text(HOSTILE)
    assert await page.title() == HOSTILE


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_report_breaks_no_rule_of_accessibility_and_fits_a_phone(
    page: "Page", report: str, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of the two
    await page.set_viewport_size({"width": 420, "height": 900})
    await page.goto(report)
    await expect(page.locator("h1")).to_be_visible()
    found = await axe.run(page)

    assert not found.violations_count, found.generate_report()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 420
