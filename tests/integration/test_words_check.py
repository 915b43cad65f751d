"""The check of banned words (.ci/words.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = [sys.executable, str(ROOT / ".ci" / "words.py")]


def check(folder: Path, name: str, text: str) -> list[str]:
    """Return what the check says about one file of a repository of its own."""
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
        ("a.py", '"""Fine.\n\nPlans anew.\n"""\n\nanew = f"{1} is told {2}"\n', [3, 6]),
        ("a.py", 'KEYS = ["told", "anew"]  # single words may be names on the wire\n', []),
        ("a.proto", "// Foretold.\nstring told = 1;\n", [1]),
        ("a.yaml", "told: 1  # whoever asks\n", [1, 1]),
    ],
)
def test_text_is_checked_and_code_is_not(
    tmp_path: Path, name: str, text: str, lines: list[int]
) -> None:
    assert check(tmp_path, name, text) == [f"{name}:{line}" for line in lines]


def test_this_repository_says_nothing_banned_in_its_documents() -> None:
    command = [*WORDS, "docs", "README.md", "protos"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout == ""
