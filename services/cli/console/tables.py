"""Tables that fit a terminal of 80 columns."""

from rich import box
from rich.table import Table


def table(title: str, *columns: str) -> Table:
    """Return an empty table.

    Args:
        title: Above it; may be empty.
        columns: Headings. One that starts with ">" is aligned to the right, as in a format.
    """
    made = Table(
        title=f"\n{title}" if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        show_edge=False,
    )
    for column in columns:
        right = column.startswith(">")
        heading = column.removeprefix(">")
        made.add_column(heading, justify="right" if right else "left", overflow="fold")
    return made
