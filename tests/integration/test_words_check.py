"""The check of banned words (.ci/words.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = [sys.executable, str(ROOT / ".ci" / "words.py")]


def check(folder: Path, name: str, text: str) -> list[str]:
    """Return the findings in one file of a new repository."""
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / name).write_text(text, encoding="utf-8")
    ended = subprocess.run(WORDS, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == (1 if ended.stdout else 0), ended.stderr
    return [line.partition(": ")[0] for line in ended.stdout.splitlines()[:-1]]


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.md", "fine\nnobody is\ntold `told`\n```\nanew\n```\n", [2, 3]),
        ("a.md", "a quotation: anew <!-- words: ok -->\n", []),
        ("a.py", '"""Fine.\n\nPlans anew.\n"""\n\nplan = f"{1} is told {2}"\n', [3, 6]),
        ("a.py", 'KEYS = ["told", "anew"]  # single words may be names on the wire\n', []),
        ("a.proto", "// Foretold.\nstring told = 1;\n", [1]),
        ("a.yaml", "told: 1  # whoever asks\n", [1, 1]),
        ("a.py", "x = 1  # told\n", [1]),
    ],
)
def test_text_is_checked_and_code_is_not(
    tmp_path: Path, name: str, text: str, lines: list[int]
) -> None:
    assert check(tmp_path, name, text) == [f"{name}:{line}" for line in lines]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def was_told(asks, *, tell): ...\n", [1, 1, 1]),
        ("class ToldByNobody:\n    scene = 1\n", [1, 1, 2]),
        ("told = 1\nself.asked = told\nprint(told)\n", [1, 2]),
        ("retold = tellurium = 1\n", []),
        ("def tell(): ...  # as files do; words: ok\n", []),
    ],
)
def test_names_are_checked_where_they_are_defined(
    tmp_path: Path, text: str, lines: list[int]
) -> None:
    """Each word of a name counts, in a definition only, and only as a whole word."""
    assert check(tmp_path, "a.py", text) == [f"a.py:{line}" for line in lines]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""What it is."""\n', [1]),
        ('def f():\n    """Have it done."""\n', [2]),
        ('class A:\n    x: int\n    """How many there are."""\n', [3]),
        ('"""Whatever it is, a noun phrase."""\nx = "What is it?"\n', []),
        ('"""Return what it is."""\n', []),
    ],
)
def test_a_docstring_begins_with_a_verb_or_a_noun_phrase(
    tmp_path: Path, text: str, lines: list[int]
) -> None:
    """Questions open no docstring of a module, class, function or attribute; text may ask them."""
    assert check(tmp_path, "a.py", text) == [f"a.py:{line}" for line in lines]


def test_this_repository_says_nothing_banned_in_its_documents() -> None:
    command = [*WORDS, "docs", "README.md", "protos"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout == ""
