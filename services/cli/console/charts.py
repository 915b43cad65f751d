"""How charts look."""

from __future__ import annotations

from typing import Any, Final

PLAIN: Final[Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
}
"""Matplotlib's settings for one: no frame, and faint lines behind the data to read heights by."""
