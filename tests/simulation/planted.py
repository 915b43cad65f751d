"""Planted bugs: each patch in `planted/` breaks the product in one place, and must be found.

A patch's first line names the history that finds it: a written one, or "search" for the search.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parents[1]
_SEARCH: Final = ("--hours", "100", "--cpu-s", "1800", "--first")


def main(names: Sequence[str]) -> int:
    """Try the patches of these names, or all; return 1 where one was not found."""
    patches = sorted(_HERE.glob("planted/*.patch"))
    chosen = [each for each in patches if not names or each.stem in names]
    missed = [each.stem for each in chosen if not found(each)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} planted bugs found; missed: {missed}")  # noqa: T201
    return int(bool(missed))


def found(patch: Path) -> bool:
    """Return whether the simulation finds a planted bug."""
    history = patch.read_text().splitlines()[0].removeprefix("# found by: ")
    arguments = _SEARCH if history == "search" else ("--play", history)
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name)
        for part in ("services", "tests/simulation", "tests/support"):
            shutil.copytree(_ROOT / part, folder / part)
        subprocess.run(["git", "apply", "--include=services/*", patch], cwd=folder, check=True)
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    broken = re.findall(r"BROKEN: (.*)", done.stdout)
    what = broken[0][:90] if broken else f"MISSED {done.stderr[-300:]}"
    print(f"{patch.stem} ({history}): {what}", flush=True)  # noqa: T201
    return done.returncode == 1 and bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
