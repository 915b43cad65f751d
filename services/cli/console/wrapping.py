"""Text in narrow columns: breaks at spaces, and long names after their separators."""

import re
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_PARTS: Final = re.compile(r"[^-_/.@:]*[-_/.@:]+|[^-_/.@:]+")


class Wrapped:
    """Text that wraps to the width it is given; markup in it has no effect."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width of the longest part that does not break, and of the longest line."""
        words = (word for line in self._lines for word in line.split(" "))
        longest = max((len(part) for word in words for part in _PARTS.findall(word)), default=0)
        return Measurement(longest, max(map(len, self._lines)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines as one text."""
        lines = [part for line in self._lines for part in wrapped(line, options.max_width)]
        yield Text("\n".join(lines))


def wrapped(line: str, width: int) -> list[str]:
    """Return a line in lines of at most `width` characters; only parts without separators are cut.

    Args:
        line: One line.
        width: Characters, >= 1.
    """
    found = [""]
    for word in line.split(" "):
        space = " " if found[-1] else ""
        if len(found[-1]) + len(space) + len(word) <= width:
            found[-1] += space + word
        elif len(word) <= width:
            found.append(word)
        else:
            found += _broken(word, width)
    return [each for each in found if each] or [""]


def _broken(word: str, width: int) -> list[str]:
    """Return a word that is longer than a line in lines, broken after its separators."""
    found = [""]
    for part in _PARTS.findall(word):
        if len(found[-1]) + len(part) <= width:
            found[-1] += part
        else:
            found += [part[start : start + width] for start in range(0, len(part), width)]
    return found


class FittingTable(Table):
    """Table whose numbers stay on one line and whose names break after separators."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row; plain text has no markup."""
        fitting = [
            cell if not isinstance(cell, str) else Text(cell) if column.no_wrap else Wrapped(cell)
            for column, cell in zip(self.columns, cells, strict=False)
        ]
        super().add_row(*fitting, **options)
