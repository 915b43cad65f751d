"""Uses of the console by readers and operators, in Chromium."""

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from cinquefoil.planner.v1 import planner_pb2
from services.cli.client import connected
from services.kit import config
from tests.browser.conftest import TOKEN, console, planned
from tests.support.fake_agent import Agent, active, carbon, living, planner
from tests.support.router.router_client import infer
from tests.support.router.router_service import World
from tests.support.router.router_service import running as router_running

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
api = pytest.importorskip("playwright.async_api", reason="pip install playwright")
expect = api.expect

ROUTER_AWAY = "○ Not live: router does not answer"
PLANS = ["plans", "plans/1", "plans/1..1"]
PAGES = ["now", "what-if", *PLANS, "models", "receipts", "account", "nodes"]


async def log_in(page: "Page", address: str) -> None:
    """Open the console and give its token."""
    await page.goto(f"{address}/")
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()


async def test_a_new_plan_appears_on_an_open_page(
    page: "Page", reading: str, running: config.Deployment
) -> None:
    await page.goto(f"{reading}/#/now")
    before = await page.locator("#newest").inner_text()
    async with connected(running) as clients:
        plan = (await clients.planner.GetPlan(planner_pb2.GetPlanRequest())).plan
        other = 1 - plan.inputs.carbon_weight
        await clients.planner.SetObjective(planner_pb2.SetObjectiveRequest(carbon_weight=other))

    await expect(page.locator("#newest")).not_to_have_text(before)
    await page.locator("#newest").click()
    await expect(page.get_by_role("heading", name="Why", exact=True)).to_be_visible()


async def test_an_operator_tries_what_if_sees_the_difference_and_applies_it(
    page: "Page", changing: str
) -> None:
    await log_in(page, changing)
    await page.get_by_role("link", name="What if", exact=True).click()
    weight = page.locator("#carbon_weight")
    other = "0" if await weight.input_value() == "1" else "1"  # accuracy only, or carbon only
    await weight.fill(other)
    await expect(page.locator("#verdict")).to_contain_text("would start")
    assert f"carbon_weight={other}" in page.url
    await expect(page.locator(".ghost")).to_have_count(2)
    await expect(page.get_by_label("Emissions", exact=True)).to_contain_text("with what runs now: ")
    await page.locator("#apply").click()

    await expect(page.get_by_role("heading", name="Plan", exact=False).first).to_be_visible()
    await expect(page.locator(".headline")).to_contain_text("It is active")


async def test_an_operator_sees_what_a_rollback_changes_and_rolls_back(
    page: "Page", changing: str
) -> None:
    await log_in(page, changing)
    await page.goto(f"{changing}/#/plans")
    await page.get_by_role("link", name="What rolling back to plan 1 would change").click()
    await expect(page.get_by_role("heading", name="From plan")).to_be_visible()
    await page.locator("#rollback").click()

    await expect(page.locator(".headline")).to_contain_text("rollback to 1. It is active")
    await page.goto(f"{changing}/#/plans")
    await page.locator("#unpin").click()
    await expect(page.get_by_text("Done, in the name of ada")).to_be_visible()


async def test_a_reader_sees_the_command_instead_of_a_button_and_is_refused(
    page: "Page", reading: str
) -> None:
    await page.goto(f"{reading}/#/plans/1")
    await expect(page.get_by_text("cinquefoil plan pin 1")).to_be_visible()
    assert await page.locator("#pin").count() == 0
    async with httpx.AsyncClient() as program:
        answer = await program.post(f"{reading}/api/change/pin", json={"version": 1})

    assert answer.status_code == 403


async def test_a_planner_that_is_away_leaves_its_last_known_state_with_its_age(
    page: "Page", tmp_path: Path
) -> None:
    """The page is greyed and is not live until the planner is back; no plan is called missing."""
    async with carbon() as grid:
        settings = planned(tmp_path, grid.port)
        agent = Agent("node-a", ("GPU-1", "GPU-2"))
        async with console(settings) as address:
            async with planner(settings) as stub, living(agent, stub):
                await active(stub, 1)
                await page.goto(f"{address}/#/now")
                await expect(page.locator("#newest")).to_have_text("Plan 1")
                # Its router never was there, which costs the page nothing else.
                await expect(page.locator("#live")).to_have_text(ROUTER_AWAY)
            away = page.locator("#wrong").get_by_text("The planner does not answer.")
            await expect(away).to_contain_text(re.compile(r"is \d+ s old"))
            await expect(page.locator("#live")).to_have_text(re.compile("Not live: planner away"))
            await expect(page.locator("#newest")).to_have_text("Plan 1")
            await expect(page.locator(".stale .gpu")).to_have_count(2)
            async with planner(settings) as stub, living(agent, stub):
                await expect(away).to_have_count(0)
                await expect(page.locator("#live")).to_have_text(ROUTER_AWAY)
                await expect(page.locator(".stale")).to_have_count(0)


async def test_an_operator_looks_at_a_node_takes_it_out_of_use_and_uses_it_again(
    page: "Page", tmp_path: Path
) -> None:
    """The plan without it first; then cordoned, and drained."""
    async with carbon() as grid:
        settings = planned(tmp_path, grid.port, ("node-a", "node-b"))
        nodes = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
        async with planner(settings) as stub, living(nodes[0], stub), living(nodes[1], stub):
            await active(stub, 1)
            async with console(settings, changes=True) as address:
                await log_in(page, address)
                await page.goto(f"{address}/#/nodes")
                await page.get_by_role("link", name="Take out of use: node-a").click()
                await page.locator("#without").click()
                await expect(page.locator("#verdict")).to_be_visible()
                assert "without=GPU-1" in page.url
                for order in ("cordon", "drain"):
                    await page.goto(f"{address}/#/nodes/node-a")
                    await page.locator(f"#{order}").click()
                    await expect(page.locator(".headline")).to_contain_text("It is out of use")
                    await page.locator("#uncordon").click()
                    await expect(page.locator(".headline")).to_contain_text("Plans use its GPU")


async def test_a_reader_follows_the_receipts_of_one_variant(
    page: "Page", running: config.Deployment
) -> None:
    """Of a real router whose answers two workers compute."""
    async with router_running() as world:
        await world.route(await world.worker("a"), await world.worker("b"), shares=(0.5, 0.5))
        away = config.Router(listen=world.address)
        async with console(running.model_copy(update={"router": away})) as address:
            await page.goto(f"{address}/#/receipts/variant=variant-a")
            await expect(page.locator(".empty").first).to_contain_text("No request was answered")
            rows = page.locator("tbody").first.locator("tr")
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(_send_always(world), name="requests")
                await expect(rows).to_have_count(1)
                await expect(rows.first).to_contain_text("variant-a")
                await expect(rows.first).to_contain_text("3.60 ±")
                sending.cancel()


async def _send_always(world: World) -> None:
    """Send requests, one after another, for a page may begin to follow at any of them."""
    while True:
        await infer(world)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_breaks_a_rule_of_accessibility(
    page: "Page", reading: str, scheme: str
) -> None:
    """axe-core's rules, on every page; in the dark those that depend on colours."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of the two
    rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    broken = {}
    for name in PAGES:
        await page.goto(f"{reading}/#/{name}")
        await expect(page.locator("h1")).to_be_visible()
        await expect(page.get_by_text("…", exact=False)).to_have_count(0)
        found = await axe.run(page, options=rules)
        if found.violations_count:
            broken[name] = found.generate_report()

    assert not broken


_TABLES = """() => [...document.querySelectorAll(".wide")].filter((it) => it.checkVisibility())
  .map((it) => [it.ariaLabel, it.scrollWidth > it.clientWidth + 1,
                it.textContent.includes("Scroll sideways"), it.tabIndex === 0])"""


@pytest.mark.parametrize("width", [420, 1280, 2560])
async def test_no_page_is_wider_than_the_screen(page: "Page", reading: str, width: int) -> None:
    """From a phone to a wall; tables that scroll by themselves say so, and take the keyboard."""
    await page.set_viewport_size({"width": width, "height": 900})
    for name in PAGES:
        await page.goto(f"{reading}/#/{name}")
        await expect(page.locator("h1")).to_be_visible()
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, name
        for _ in range(50):  # tables come and go while the page reads
            tables = await page.evaluate(_TABLES)
            unlike = [each for each in tables if len({*each[1:]}) > 1]
            if not unlike:
                break
            await page.wait_for_timeout(100)
        assert not unlike, name


async def test_a_field_of_a_newer_planner_is_shown_with_its_unit(
    page: "Page", reading: str
) -> None:
    """A plan's page names most fields; those that it does not know have a row, too."""

    async def newer(route: "Route") -> None:
        while not (answer := await route.fetch()).ok:  # a busy machine's planner may be late
            continue
        plan = await answer.json()
        plan |= {"water_j": 1500.0, "spot": {"spot_share": 0.25}}
        plan["prediction"]["ambient_w"] = {"rack-7": 12}
        await route.fulfill(response=answer, json=plan)

    await page.route("**/api/plans/1", newer)
    await page.goto(f"{reading}/#/plans/1")
    await page.get_by_text("What else it predicts").click()

    for label, value in (
        *(("water", "1500 J"), ("spot spot share", "25.0 %")),
        ("ambient rack-7", "12 W"),
    ):
        await expect(page.get_by_role("row", name=label)).to_contain_text(value)
