"""Texts of recognisers that give scores of characters, step by step (CTC).

Graves et al., "Connectionist Temporal Classification", ICML 2006: the best class of each step,
without repetitions and blanks, which are class 0.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from services.cli.samples import Array
from services.kit.errors import InvalidArgument

_NAMES: Final = "character"
"""Key of a file's metadata whose lines are the characters from class 1 on, as PaddleOCR's have."""


UNNAMED: Final = (
    f"it gives scores of characters, and its file does not say which (metadata {_NAMES!r}, a line "
    "each): add that, have --metric FILE:FUNCTION read them, or leave the labels out to compare "
    "variants with the last one"
)


def characters_of(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the characters that a network's file names, from class 1 on; none: it names none."""
    return tuple(metadata.get(_NAMES, "").splitlines())


def text(answer: Mapping[str, Array], characters: Sequence[str]) -> str | None:
    """Return the text of an answer; None: it has other texts, or no scores [steps, classes].

    Args:
        answer: An item's outputs by name.
        characters: From class 1 on; a further class is the space. None are named: a character
            stands for each class, which serves to compare answers with one another.
    """
    if any(each.dtype == object for each in answer.values()):
        return None
    scores = next((each for each in answer.values() if _are_scores(each)), None)
    if scores is None:
        return None
    best = np.argmax(scores, axis=1)
    kept = best[np.flatnonzero(np.diff(best, prepend=-1))]
    classes = [int(each) - 1 for each in kept if each]
    if not characters:
        return "".join(map(chr, classes))
    names = (*characters, " ")
    if scores.shape[1] > len(names) + 1:
        raise InvalidArgument(
            f"its metadata {_NAMES!r} names {len(characters)} characters, and its answers have "
            f"{scores.shape[1]} classes: a blank, those, and a space are expected"
        )
    return "".join(names[each] for each in classes)


def _are_scores(output: Array) -> bool:
    return output.dtype.kind == "f" and output.ndim == 2 and output.shape[1] > 1
