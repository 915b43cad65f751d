"""What runs on a slice, in a word or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class Part(Protocol):
    """A variant, or the stage of it that runs, where it is a pipeline."""

    @property
    def model(self) -> str:
        """What clients ask for."""
        ...

    @property
    def variant(self) -> str:
        """The network that answers."""
        ...

    @property
    def stage(self) -> int:
        """Its number, from 0."""
        ...


Namer = Callable[[Part], str]


def namer(parts: Iterable[Part]) -> Namer:
    """Return what names parts among others: stages by number, also the first of several."""
    pipelines = {_of(part) for part in parts if part.stage}

    def name(part: Part) -> str:
        whole = f"{part.model}/{part.variant}"
        # No break between the word and the number: tables are narrow.
        return f"{whole} stage\N{NO-BREAK SPACE}{part.stage}" if _of(part) in pipelines else whole

    return name


def _of(part: Part) -> tuple[str, str]:
    return part.model, part.variant
