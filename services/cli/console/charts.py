"""How charts look."""

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


def legend_outside(axis: Any, *, reverse: bool = False) -> None:
    """Put a legend beside the axis; `reverse` lists stacked areas from the top down."""
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, reverse=reverse)
