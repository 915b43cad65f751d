"""Errors of pages that their runner finds; and yaml of a page is a deployment."""

import re
from pathlib import Path

import pytest

from tests.support.documents import PageError, Reader, differs, steps
from tests.support.paths import ROOT

TABLE = "Models\n\nmodel   share\n───────────\ndigits  98.1 %\nplan 1: ready\n"


@pytest.mark.parametrize(
    ("expected", "lacking"),
    [
        (["..."], None),
        (["Models", "...", "plan 7: ready"], None),
        (["...", "digits 100 %", "..."], None),
        (["...", "model ...", "─", "digits ... %", "plan 1: ..."], None),
        (["...", "plan 1: held"], "plan 1: held"),
        (["...", "digits 100 %"], "digits 100 %"),
        (["digits 100 %", "..."], "digits 100 %"),
        (["...", "digits 98.1 %", "model   share", "..."], "digits 98.1 %\nmodel   share"),
        ([], "(nothing more)"),
    ],
)
def test_an_output_is_compared_but_for_numbers_and_white_space(
    expected: list[str], lacking: str | None
) -> None:
    """Lines are in order and whole; only `...` stands for what is left out."""
    assert differs(expected, TABLE) == lacking


def test_a_command_without_lines_below_it_prints_nothing() -> None:
    """Silence is an expected output as well."""
    assert differs([], "\n") is None


@pytest.mark.parametrize("opened", ["```", "```sh", "```console linenums", "  ```console"])
def test_a_block_that_cannot_be_run_is_an_error(tmp_path: Path, opened: str) -> None:
    """No block of a page is passed over."""
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{opened}\n$ true\n```\n")
    with pytest.raises(PageError, match=r"page.md:3: no way to run"):
        list(steps(page))


PAGES = {
    "fails": ("```console\n$ false\n```", "status 1"),
    "prints something else": ("```console\n$ echo one\ntwo\n```", "lacks"),
    "says no command": ("```console\nprinted\n```", "begins with a command"),
    "name not defined": ("```python\nclient.infer()\n```", "NameError.*client"),
    "no deployment": ("```yaml\nversion: v1\nnods: {}\n```", "nods"),
    "ports taken": (
        "```console\n$ : cinquefoil up && sleep 60\n```\n\n```console\n$ cinquefoil up\n```",
        "does not say ctrl-c",
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_says_what_is_not_so_fails(tmp_path: Path, name: str) -> None:
    """Each kind of block can be found wrong, with the page's line."""
    text, complaint = PAGES[name]
    (page := tmp_path / "page.md").write_text(text)
    with pytest.raises(PageError, match=complaint):
        Reader(tmp_path).read(page)


def test_a_shell_and_names_last_as_long_as_the_page(tmp_path: Path) -> None:
    """A block finds all that blocks before it set, wrote and defined."""
    (page := tmp_path / "page.md").write_text(
        '```python title="one.py"\nprint(41 + 1)\n```\n'
        "```console\n$ mkdir below && cd below && export CHOSEN=here\n$ python ../one.py\n42\n```\n"
        "```python\nfrom pathlib import Path\n```\n"
        "```python\nassert Path.cwd().name == 'below'\n```\n"
        "```console\n$ echo $CHOSEN\nhere\n```\n"
    )
    Reader(tmp_path).read(page)


UNPUBLISHED = re.compile(
    r"pip (?:install|wheel) (?:-\S+ )*'?cinquefoil(?:-protos)?(?![\w\[/.-])|pipx run cinquefoil"
)


def test_one_page_names_what_no_index_has_yet() -> None:
    """Elsewhere wheels are installed, or extras where Cinquefoil is: no name of ours is fetched."""
    guides = ("*.md", "docs/*.md", "docs/papers/*.md", "protos/*.md", "examples/**/*.md")
    programs = ("examples/*.py", "examples/*/*.py", "examples/*/*.yaml")
    pages = [page for pattern in guides + programs for page in ROOT.glob(pattern)]
    named = {page.name for page in pages if UNPUBLISHED.search(page.read_text(encoding="utf-8"))}
    assert named == {"install.md"}


def test_the_readme_comes_to_the_point() -> None:
    """At most 70 lines lie before what to read next."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines.index("## Next") < 70


def test_the_settings_that_matter_are_a_deployment(tmp_path: Path) -> None:
    """The page's file is valid as it stands."""
    Reader(tmp_path).read(ROOT / "docs/settings.md")
