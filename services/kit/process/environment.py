"""Environment that a process gets which parses what others made."""

import os
from typing import Final

_PASSED_ON: Final = (
    "HOME", "LANG", "LC_", "LD_LIBRARY_PATH", "PATH", "PYTHON", "TMPDIR", "TZ", "VIRTUAL_ENV",
)  # fmt: skip
"""Beginnings of variables that every Python process needs; the rest may hold secrets."""


def passed_on(*beginnings: str) -> dict[str, str]:
    """Return the variables that a program needs, and those that begin like this."""
    wanted = (*_PASSED_ON, *beginnings)
    return {name: value for name, value in os.environ.items() if name.startswith(wanted)}


def one_thread() -> dict[str, str]:
    """Return the variables by which libraries of algebra start no threads of their own."""
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
