"""Commands that documents name: each exists, with its options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from services.cli.main import app
from tests.support.paths import ROOT

PAST = ROOT / "CHANGELOG.md"
"""Names commands of past releases."""

PAGES = [
    *(page for page in ROOT.glob("*.md") if page != PAST),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("examples/*/README.md"),
]
COMMAND = re.compile(r"(?:^|`|^\$ |\.venv/bin/|&& )cinquefoil ([a-z][^`#\n|]*)", re.MULTILINE)


@pytest.fixture(scope="module")
def root() -> Any:
    """The command, by typer's own classes."""
    return typer.main.get_command(app)


def wrong(root: Any, text: str) -> Iterator[str]:
    """Yield the words of a command that do not exist."""
    command, words = root, text.split()
    while words and (below := getattr(command, "commands", None)):
        word = words.pop(0)
        if not re.fullmatch(r"[a-z-]+", word):
            return  # "init|up": a form, no command
        if word not in below:
            yield word
            return
        command = below[word]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    yield from (
        word
        for word in (each.partition("=")[0] for each in words)
        if re.fullmatch(r"--[a-z-]+", word) and word not in {*known, "--help"}
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist(root: Any, page: Path) -> None:
    """A newcomer copies them word for word."""
    text = page.read_text(encoding="utf-8")
    missing = {
        f"{command.strip()}: no {word}"
        for command in COMMAND.findall(text)
        for word in wrong(root, command)
    }
    assert not missing
