"""Planted bugs: each patch in `planted/` breaks the product in one place, and must be found.

A patch's first line names the history that finds it: a written one, or "search" for the search.
`make planted` goes on where it was stopped, as long as the commit is the same.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.simulation.search import commit

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parents[1]
_RESULTS: Final = _ROOT / "out/simulation/planted.json"
_LIMIT_S: Final = 1800
_SEARCH: Final = ("--hours", "100", "--cpu-s", str(_LIMIT_S), "--first", "--seed", "1")
PATCHES: Final = tuple(sorted(_HERE.glob("planted/*.patch")))


def main(names: Sequence[str]) -> int:
    """Try the patches of these names, or all; return 1 where one was not found in its time."""
    results = _saved()
    missed = []
    for patch in PATCHES:
        if names and patch.stem not in names:
            continue
        key = f"{patch.stem} {commit()} {hash_of(patch)}"
        if key not in results:
            results[key] = _tried(patch)
            _RESULTS.parent.mkdir(parents=True, exist_ok=True)
            _RESULTS.write_text(json.dumps(results, indent=1))
        what, history, cpu_s = results[key]
        print(f"{patch.stem:26} {history:26} {cpu_s:7.1f} s  {what or 'MISSED'}", flush=True)  # noqa: T201
        if not what or cpu_s > _LIMIT_S:
            missed.append(patch.stem)
    print(f"missed: {', '.join(missed) or 'none'}")  # noqa: T201
    return int(bool(missed))


def hash_of(patch: Path) -> str:
    """Return Git's name of a patch as it is."""
    done = subprocess.run(
        ["git", "hash-object", patch], capture_output=True, text=True, check=True, cwd=_ROOT
    )
    return done.stdout.strip()[:12]


def applied(patch: Path, folder: Path) -> None:
    """Copy what the simulation needs to a folder, with the bug."""
    for part in ("services", "tests/simulation", "tests/support"):
        shutil.copytree(_ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", "--include=services/*", patch], cwd=folder, check=True)


def _saved() -> dict[str, tuple[str, str, float]]:
    return json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}


def _tried(patch: Path) -> tuple[str, str, float]:
    """Return what the simulation finds of a bug, "": nothing; by which history; and its CPU, s."""
    history = patch.read_text().splitlines()[0].removeprefix("# found by: ")
    arguments = _SEARCH if history == "search" else ("--play", history)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        applied(patch, Path(name))
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", *arguments],
            cwd=name,
            capture_output=True,
            text=True,
            check=False,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    broken = re.findall(r"BROKEN: (.*)", done.stdout) if done.returncode == 1 else []
    return broken[0][:90] if broken else "", history, cpu_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
