"""A GPU's slices as a bar of cells, one for each compute slice: [svc svc svc svc ··· lin lin]."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rich.text import Text

_WIDTH: Final = 3
_FREE, _UNCUT = "·" * _WIDTH, " " * _WIDTH
_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "bright_red")


@dataclass(frozen=True, slots=True)
class SliceCells:
    """A slice of a bar.

    Attributes:
        start: First memory slice, which is its first cell where there is room for all of them.
        cells: Compute slices, >= 1.
        runs: "model/variant"; "": nothing.
    """

    start: int
    cells: int
    runs: str

    def span(self, cells: int) -> range:
        """Return the cells that it takes in a bar of so many."""
        first = max(0, min(self.start, cells - self.cells))
        return range(first, min(first + self.cells, cells))


def labels(runs: Iterable[str]) -> dict[str, str]:
    """Return three characters for each name: the variant's first ones, made distinct by digits."""
    found: dict[str, str] = {}
    for name in sorted(set(runs)):
        stem = name.rpartition("/")[2][:_WIDTH].ljust(_WIDTH, "_")
        taken, number = set(found.values()), 1
        label = stem
        while label in taken:
            number += 1
            label = f"{stem[: _WIDTH - len(str(number))]}{number}"
        found[name] = label
    return found


def bar(cells: int, slices: Iterable[SliceCells], known: Mapping[str, str]) -> Text:
    """Return the bar of a GPU. Free slices are dots, what is not cut is blank.

    Args:
        cells: Compute slices of the GPU.
        slices: Its slices.
        known: Labels by what runs, of all bars that are shown together.
    """
    row = [Text(_UNCUT) for _ in range(cells)]
    colours = {name: _COLOURS[n % len(_COLOURS)] for n, name in enumerate(sorted(known))}
    for each in slices:
        for place in each.span(cells):
            row[place] = Text(known.get(each.runs, _FREE), style=colours.get(each.runs, "dim"))
    return Text.assemble("[", Text(" ").join(row), "]")
