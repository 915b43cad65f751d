"""The confusion matrix of length classes, as a picture."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

_NAMES: Final = ("shortest\nquarter", "2nd\nquarter", "3rd\nquarter", "up to\np99", "above\np99")


def draw(confusion: NDArray[np.int64], file: Path) -> None:
    """Write the confusion matrix as a PNG file: each row in parts of its sum.

    Args:
        confusion: True classes (rows), called classes (columns), shape (5, 5).
        file: Where to.
    """
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    figure = Figure(figsize=(5.6, 5), layout="constrained")
    axes: Any = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(shares):
        colour = "white" if share > 0.5 else "black"
        text = f"{share:.0%}\n{confusion[row, column]}"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(len(_NAMES)), _NAMES)
    axes.set_yticks(range(len(_NAMES)), _NAMES)
    axes.set_xlabel("called")
    axes.set_ylabel("true")
    right = np.trace(confusion) / max(confusion.sum(), 1)
    axes.set_title(f"Classes of output length: {right:.0%} of {confusion.sum()} right", fontsize=10)
    figure.savefig(file, dpi=120)
