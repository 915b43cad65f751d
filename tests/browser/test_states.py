"""Every page of the console in every state in which something is missing."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.kit.config.loader import load
from tests.browser.conftest import console
from tests.support.cli.worlds import WORLDS, commands, serving

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

PAGES = (
    *("now", "what-if", "plans", "plans/7", "models", "receipts", "batches", "account"),
    *("nodes", "nodes/node-0"),
)
COMPLETE_MS = 60_000
"""Longest wait for a page on a busy machine, and for its reasons."""

_UNANSWERED = re.compile(r"\w+ at \S+ does not answer")
_READING = re.compile(r"…$")
_LINES = """() => [...document.querySelectorAll("#page *")]
  .filter((it) => it.checkVisibility() && ![...it.children].some((each) => each.tagName !== "I"))
  .map((it) => [it, it.closest("section:not(.panel), .card, .tile") ?? it.parentElement])
  .map(([it, part]) => [it.textContent.trim(), part.innerText])"""
_PLACEHOLDER = re.compile(
    "^(?:[-\N{EN DASH}?]|n/a|none|unknown)$|none yet|not (?:ready|loaded|known|served)"
    r"|no [\w ]+ yet|^(?:no|nothing|none) .*\.$",
    re.IGNORECASE,
)


async def unexplained(page: "Page") -> list[str]:
    """Return placeholders whose part of the page has no command, where its top has none either.

    Errors that stand there twice are returned, too.
    """
    reasons = await page.locator("#wrong, #page [role=alert]").all_inner_texts()
    errors = _UNANSWERED.findall(await page.locator("main").inner_text())
    if len(set(errors)) < len(errors):
        return errors
    if any(commands("\n".join(reasons))):
        return []
    found = [(text, part) for text, part in await page.evaluate(_LINES)]
    return [text for text, part in found if _PLACEHOLDER.search(text) and not any(commands(part))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", list(WORLDS))
async def test_no_page_shows_a_placeholder_without_its_reason_and_a_command(
    world: str, page: "Page", tmp_path: Path
) -> None:
    """Pages without a plan, planner, router, intensity, history or batch service say why."""
    config = tmp_path / "cinquefoil.yaml"
    found = {}
    async with serving(WORLDS[world], config), console(load(config)) as address:
        for name in PAGES:
            await page.goto(f"{address}/#/{name}")
            drawn = page.locator(f'[data-page="#/{name}"] h1')
            await drawn.wait_for(state="attached", timeout=COMPLETE_MS)
            await (
                page.locator("#page")
                .get_by_text(_READING)
                .first.wait_for(state="detached", timeout=COMPLETE_MS)
            )
            if bad := await unexplained(page):
                found[name] = bad

    assert not found
