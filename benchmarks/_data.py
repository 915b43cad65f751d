"""Where published traces and measurements lie, and what to do where they do not."""

import os
from pathlib import Path
from typing import Final

from benchmarks.harness import Skipped
from services.datasets.catalog import folder

_BESIDE: Final = Path(__file__).parents[2] / "shared/data"

DATA: Final = _BESIDE if _BESIDE.is_dir() and "CINQUEFOIL_DATA" not in os.environ else folder()
"""Those of `cinquefoil data fetch`, or a checkout's neighbour that has the same files."""


def data_file(path: str) -> Path:
    """Return a file's path, "DATA SET/..." within `DATA`; a folder's too.

    Raises:
        Skipped: The file is not there.
    """
    found = DATA / path
    if not found.exists():
        name = path.partition("/")[0]
        raise Skipped(f"no {path} in {DATA}: `cinquefoil data fetch {name}` brings it")
    return found
