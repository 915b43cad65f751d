"""The page of batches in Chromium, over a batch service and what a planner has said to it."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from cinquefoil.planner.v1 import waiting_pb2
from services.kit.config import Deployment
from services.kit.net import free_port
from tests.browser.conftest import console
from tests.support.batch_service import INFER, jsonl, row, serving_batches, settings, until
from tests.support.router.router_service import computed
from tests.support.router.router_service import running as router_running

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
api = pytest.importorskip("playwright.async_api", reason="pip install playwright")
expect = api.expect


LATE = "7 of 40 requests due 18:00 UTC will be late; possible with 1 replica more"


def said() -> waiting_pb2.WaitingRelease:
    """Two hours of waiting, then one in which all runs; a deadline that cannot be kept."""
    found = waiting_pb2.WaitingRelease(
        model="digits", planned_gco2e=1.0, at_once_gco2e=4.0, own_pool_gco2e=8.0
    )
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for after in range(3):
        period = found.periods.add(
            cause=waiting_pb2.RELEASE_CAUSE_LATER, intensity_gco2e_per_kwh=300, room_rps=5
        )
        period.since.FromDatetime(hour + timedelta(hours=after))
        period.until.FromDatetime(hour + timedelta(hours=after + 1))
    last = found.periods[-1]
    last.fill, last.rate_rps, last.intensity_gco2e_per_kwh = True, 5.0, 100
    last.cause = waiting_pb2.RELEASE_CAUSE_CLEAN
    late = found.shortages.add(late_requests=7, replicas=1, text=LATE)
    late.due.FromDatetime(hour + timedelta(hours=1))
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def waiting(
    tmp_path_factory: pytest.TempPathFactory, running: Deployment
) -> AsyncIterator[tuple[str, str]]:
    """The address of a console, and a batch of 40 lines that waits by plan, two of them bad."""
    folder = tmp_path_factory.mktemp("batches")
    section = settings(folder, listen=f"127.0.0.1:{free_port()}")
    sections = {"batch": section.model_dump(mode="json", exclude_unset=True)}
    http = f"127.0.0.1:{free_port()}"
    async with router_running(http_listen=http, sections=sections) as world:
        await world.route(await world.worker("a", computed))
        await world.planner.release(said())
        page_of = running.model_copy(update={"batch": section})
        content = jsonl([b"{", b"{", *(row(number) for number in range(38))])
        async with serving_batches(world.made) as client, console(page_of) as address:
            file = await client.files.create(file=("in.jsonl", content), purpose="batch")
            batch = await client.batches.create(
                input_file_id=file.id,
                endpoint=INFER,  # type: ignore[arg-type]  # ours beside OpenAI's
                completion_window="24h",
            )
            await until(client, batch.id, lambda found: found.status == "in_progress")
            yield address, batch.id


async def test_the_page_says_what_waits_when_it_runs_what_is_late_and_what_waiting_saves(
    page: "Page", waiting: tuple[str, str]
) -> None:
    """From the batch service alone; the console's planner knows nothing of it."""
    address, batch = waiting
    await page.goto(f"{address}/#/batches")
    main = page.locator("main")

    await expect(main.locator(".headline")).to_have_text("38 requests wait, in one batch.")
    await expect(main.get_by_text(f"✕ {LATE}")).to_be_visible()
    await expect(main.get_by_text(re.compile(r"75.% of 4\.00.gCO"))).to_be_visible()
    await expect(main.get_by_role("row", name=batch)).to_contain_text("0/40")
    await expect(main.get_by_role("region", name="Plan of digits")).to_be_visible()
    await main.get_by_text("Hours as a table (UTC)").click()
    hours = main.get_by_role("table", name="Hours of digits, UTC")
    await expect(hours.get_by_role("row")).to_have_count(4)
    await expect(hours.get_by_role("row").last).to_contain_text("clean hours")
