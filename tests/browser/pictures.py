"""Takes the pictures of docs/console.md from a console that runs, of every page.

cinquefoil up &
cinquefoil load digits --rps 50 --seconds 1800 &   # for Receipts, and a past for Now
python -m tests.browser.pictures [ADDRESS [TOKEN]]
"""

import asyncio
import sys

from playwright.async_api import async_playwright, expect

from tests.browser.conftest import CHROMIUM
from tests.support.paths import ROOT

FOLDER = ROOT / "docs/pictures"
# What is there when a page is complete: of What if the last of eight outcomes.
PAGES = {
    "now": ".panel .bands rect >> nth=0",
    "what-if": "tbody button >> nth=7",
    "plans": "tbody tr >> nth=0",
    "plans/1": "text=Predicted and measured",
    "models": "tbody tr >> nth=0",
    "receipts": "tbody tr >> nth=3",
    "account": ".chart canvas, table >> nth=0",
    "nodes": "tbody tr >> nth=0",
}
_COMPLETE_MS = 120_000


async def main(address: str, token: str) -> None:
    """Write a picture per page."""
    FOLDER.mkdir(exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        headers = {"authorization": f"Bearer {token}"} if token else {}
        await page.set_extra_http_headers(headers)
        for name, complete in PAGES.items():
            await page.goto(f"http://{address}/#/{name}")
            await expect(page.locator(complete)).to_be_visible(timeout=_COMPLETE_MS)
            await page.screenshot(
                path=FOLDER / f"console-{name.replace('/', '-')}.png", full_page=True
            )
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] + ["127.0.0.1:8467", ""][len(sys.argv) - 1 :])))
