"""The page Now in Chromium: ten questions of an operator, and one axis of time."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from cinquefoil.carbon.v1.carbon_pb2 import Forecast
from cinquefoil.planner.v1 import planner_pb2
from services.cli.client import connected
from services.kit import config
from tests.browser.conftest import PATIENCE_MS, console, two_plans
from tests.browser.made_up_history import history
from tests.support.fake_agent import carbon
from tests.support.router.router_client import infer
from tests.support.router.router_service import running as router_running

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
api = pytest.importorskip("playwright.async_api", reason="pip install playwright")
expect = api.expect

GPUS = ["GPU-1", "GPU-2"]

QUESTIONS: Sequence[tuple[str, str, str]] = (
    ("when and why did it last change", "", r"Plan \d+ at \d\d:\d\d: .*\w"),
    ("what did it save yesterday", "", r"Yesterday: .*(± .*gCO₂e|nothing was served)"),
    ("which model is nearest its objective", "", r"Nearest its objective: \w+, p95 \d+ ms of"),
    ("what if a node goes", "What if node-a goes", r"It would|no .*GPU|per hour"),
    ("what is the grid doing next", "", r"Forecast: falls to 80 .*, then rises to"),
    ("what runs on GPU 1", "", r"node-a/1 runs .*(@\d|nothing)"),
    ("what did plan 2 change", "Plan 2", r"Starts \d+ segments?, stops \d+, keeps \d+"),
    ("who holds the plan", "", r"Planner: [\w.:-]+, term \d+"),
    ("how accurate are answers now", "", r"Accuracy now\W+definition\W+0\.\d+"),
    ("what goes to other regions", "", r"row .far [^:]*router|row .far .*(not called|connect)"),
    ("what is wrong", "", r"✓ Nothing is wrong|▲ .*\w|✕ .*\w"),
)
"""A question, the link that one follows for it ("": none), and what its answer looks like."""


def rising() -> Forecast:
    """A forecast of 24 hours that fall, and then rise."""
    forecast = Forecast(method="made up")
    for hour in range(24):
        period = forecast.periods.add(intensity_gco2e_per_kwh=100 + 5 * abs(hour - 8) - 20)
        period.since.FromSeconds(3600 * hour)
    return forecast


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of a console of a planner, and of a router that has answered."""
    folder = tmp_path_factory.mktemp("serving")
    async with (
        carbon() as grid,
        two_plans(folder, grid) as running,
        router_running() as world,
    ):
        grid.forecast = rising()
        await world.route(await world.worker("a"))
        for _ in range(20):
            await infer(world)
        away = config.Router(listen=world.address)
        async with console(running.model_copy(update={"router": away})) as address:
            yield address


async def open_a_day(page: "Page", address: str) -> None:
    """Open Now over a day of history that is made up."""

    async def answer(route: "Route") -> None:
        await route.fulfill(json=history(GPUS))

    await page.route("**/api/history*", answer)
    await page.goto(f"{address}/#/now")
    await expect(page.locator(".panel")).to_have_count(9)


async def read_aloud(page: "Page") -> str:
    """Return the text of the page that assistive technology has."""
    return re.sub(r"\s+", " ", await page.locator("main").aria_snapshot())


@pytest.mark.parametrize(("question", "link", "answer"), QUESTIONS, ids=[q for q, *_ in QUESTIONS])
async def test_an_operators_question_is_answered_within_one_click(
    page: "Page", serving: str, question: str, link: str, answer: str
) -> None:
    """A reader of the accessible text alone, who begins at Now, finds it."""
    await page.goto(f"{serving}/#/now")
    await expect(page.get_by_label("What happened")).to_be_visible()
    if link:
        await page.get_by_role("link", name=re.compile(f"^{link}\\b")).last.click()
    for _ in range(PATIENCE_MS // 100):
        if re.search(answer, await read_aloud(page)):
            return
        await page.wait_for_timeout(100)
    raise AssertionError(f"{question}: no {answer!r} in {await read_aloud(page)}")


async def test_one_cursor_goes_over_all_panels_with_the_pointer_and_with_arrow_keys(
    page: "Page", reading: str
) -> None:
    """Every panel says its figures at that time; leaving goes back to now."""
    await open_a_day(page, reading)
    at = page.locator(".at strong")
    before = await figures(page)
    await hover(page, 0.3)
    await expect(page.locator(".cursor")).to_have_count(1)
    await expect(at).to_have_text(re.compile(r"\d\d:\d\d:\d\d UTC"))
    assert all(one != other for one, other in zip(before, await figures(page), strict=True))
    await page.mouse.move(0, 0)
    await expect(at).to_have_text("Now")

    await page.locator("#cursor").focus()
    await page.keyboard.press("PageUp")
    await page.keyboard.press("PageUp")
    spoken = await page.locator("#cursor").get_attribute("aria-valuetext")
    assert spoken is not None
    assert "Plan 14" in spoken
    await page.keyboard.press("ArrowLeft")
    await expect(page.locator("#cursor")).to_have_attribute("aria-valuetext", re.compile("Plan 13"))


async def figures(page: "Page") -> list[str]:
    """Return the figures of the panels that have lines."""
    panels = page.locator(".panel:has(.line) dl")
    return [await each.inner_text() for each in await panels.all()]


async def hover(page: "Page", share: float) -> None:
    """Move the pointer to a share of the width of the first panel's picture."""
    box = await page.locator(".panel svg").first.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * share, box["y"] + 10)


@pytest.mark.parametrize("way", ["click", "Enter"])
async def test_a_mark_opens_the_explanation_of_its_plan(
    page: "Page", reading: str, way: str
) -> None:
    await open_a_day(page, reading)
    mark = page.locator(".mark", has_text=re.compile("^2$"))
    await (mark.click() if way == "click" else mark.press("Enter"))

    await expect(page.get_by_role("heading", name="Why", exact=True)).to_be_visible()
    assert page.url.endswith("/plans/2")


async def test_a_drag_zooms_and_a_button_goes_back(page: "Page", reading: str) -> None:
    await open_a_day(page, reading)
    cursor = page.locator("#cursor")
    whole = await span(cursor)
    await hover(page, 0.3)
    await page.mouse.down()
    await hover(page, 0.5)
    await page.mouse.up()
    await expect(page.locator("#unzoom")).to_be_visible()
    assert await span(cursor) < whole / 3
    await page.locator("#unzoom").click()
    await expect(page.locator("#unzoom")).to_have_count(0)
    assert await span(cursor) == whole


async def span(cursor: "Locator") -> int:
    """Return the length of the time shown, s."""
    ends = [await cursor.get_attribute(f"aria-value{end}") for end in ("min", "max")]
    first, last = (int(each or 0) for each in ends)
    return last - first


async def test_slices_never_leave_their_gpu_and_have_the_colours_of_the_palette(
    page: "Page", reading: str
) -> None:
    await open_a_day(page, reading)
    palette = (await (await page.request.get(f"{reading}/api/now")).json())["palette"]
    known = {colour for model in palette.values() for colour in model["variants"].values()}
    assert known
    for panel in await page.locator(".panel:has(.bands)").all():
        svg = await panel.locator("svg").evaluate("(it) => it.height.baseVal.value")
        for band in await panel.locator(".bands rect").all():
            top, tall = [float(await band.get_attribute(each) or 0) for each in ("y", "height")]
            assert top >= 0
            assert top + tall <= svg
    drawn = page.locator(".gpu g rect[style]")
    for each in await drawn.all():
        assert await each.evaluate("(it) => it.style.fill") in known


async def test_every_chart_has_its_figures_as_a_table(page: "Page", reading: str) -> None:
    await open_a_day(page, reading)
    await page.locator("#figures summary").click()
    heads = await page.locator("#figures thead th").all_inner_texts()

    for panel in ("Grid: US-CAL", "Power: measured", "Power: BASE", "Latency: digits"):
        assert panel in heads
    assert await page.locator("#figures tbody tr").count() > 20
    await page.locator("#history-table summary").click()
    await expect(page.locator("#history-table tbody tr")).to_have_count(15)


async def test_the_running_hour_is_a_rate_until_now(page: "Page", reading: str) -> None:
    """Half an hour's sum is half of what an hour at that rate has, at both ends of the account."""
    await page.goto(f"{reading}/#/account")
    hours = [{"hour": f"2026-03-01T0{hour}:00:00+00:00"} for hour in (1, 2)]
    found = await page.evaluate(
        "async (given) => (await import('/static/account.js')).rates(...given)",
        [hours, "2026-03-01T02:30:00+00:00", "2026-03-01T01:45:00+00:00"],
    )

    assert [each["per_h"] for each in found] == [4, 2]
    assert [each["to"] - each["from"] for each in found] == [900, 1800]


async def test_a_day_breaks_no_rule_of_accessibility(page: "Page", reading: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    await open_a_day(page, reading)
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        found = await axe.run(page)
        assert not found.violations_count, found.generate_report()


async def test_a_new_deployment_says_what_to_do(page: "Page", reading: str) -> None:
    """No router, no request: each empty part has the command that fills it."""
    await page.goto(f"{reading}/#/now")
    await expect(page.get_by_label("Power now")).to_be_visible()
    text = await read_aloud(page)

    for command in ("cinquefoil up", "cinquefoil load MODEL"):
        assert command in text


async def test_plans_are_followed_without_a_reload(
    page: "Page", reading: str, running: config.Deployment
) -> None:
    await page.goto(f"{reading}/#/now")
    before = await page.locator("#newest").inner_text()
    async with connected(running) as clients:
        plan = (await clients.planner.GetPlan(planner_pb2.GetPlanRequest())).plan
        other = 1 - plan.inputs.carbon_weight
        await clients.planner.SetObjective(planner_pb2.SetObjectiveRequest(carbon_weight=other))
    await expect(page.locator("#newest")).not_to_have_text(before)
