#!/usr/bin/env python3
"""Refuse a mention of a file, folder, module or heading that does not exist.

Checked are the links of every tracked Markdown file (with their #headings), paths of this
repository in its prose and names of files between backticks; and, in every tracked text,
`docs/....md` and `python -m benchmarks....`.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s:]*)\)")  # a colon: an address outside the repository
PATH = re.compile(r"(?<![\w/.-])(?:services|protos|tests|benchmarks|examples|deploy)/[\w/.-]*\w/?")
DOC = re.compile(r"(?<![\w/-])docs/(?:decisions/|measurements/)?[\w-]+\.md")
MODULE = re.compile(r"python -m ((?:benchmarks|services)(?:\.[a-z_]+)+)\b")
FILE = re.compile(r"`([\w/]+\.(?:py|proto))`")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
TEXTS = {".py", ".md", ".proto", ".yaml", ".toml", ".j2"}


def main() -> int:
    """Print each dead mention as `file: mention`; return 1 where there is any."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout
    paths = [path for path in map(Path, listed.splitlines()) if path.is_file()]
    dead = [
        f"{path}: {mention}"
        for path in paths
        if path.suffix in TEXTS
        for mention in _dead(paths, path, path.read_text(encoding="utf-8"))
    ]
    print("\n".join(dead), end="\n" if dead else "")
    return 1 if dead else 0


def _dead(paths: list[Path], path: Path, text: str) -> Iterator[str]:
    yield from (doc for doc in DOC.findall(text) if not Path(doc).is_file())
    for module in MODULE.findall(text):
        place = Path(*module.split("."))
        if not (place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()):
            yield f"python -m {module}"
    if path.suffix == ".md":
        yield from (each for each in PATH.findall(text) if not Path(each).exists())
        yield from (link for link in LINK.findall(text) if not _leads(path, link))
        yield from (name for name in FILE.findall(text) if not any(map(_ends(name), paths)))


def _ends(name: str) -> Callable[[Path], bool]:
    return lambda path: f"/{path}".endswith(f"/{name}")


def _leads(path: Path, link: str) -> bool:
    name, _, heading = link.partition("#")
    target = path.parent / name if name else path
    if not heading:
        return target.exists()
    return target.is_file() and heading in _anchors(target.read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    """Return what GitHub makes of headings: lower case, hyphens for spaces, no punctuation."""
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in HEADING.findall(text))
    return {each.replace(" ", "-") for each in plain}


if __name__ == "__main__":
    sys.exit(main())
