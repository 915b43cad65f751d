"""Conditions as lines of text."""

from collections.abc import Iterable, Iterator
from typing import Final

from rich.text import Text

from services.kit.conditions import Condition, Effect

_STYLES: Final = {Effect.STOPS: "red", Effect.WAITS: "yellow", Effect.DEGRADES: "yellow"}


def condition_lines(conditions: Iterable[Condition]) -> Iterator[Text]:
    """Yield a line for each condition, what stops something first."""
    for each in sorted(conditions, key=lambda each: list(Effect).index(each.effect)):
        yield condition_line(each)


def condition_line(condition: Condition) -> Text:
    """Return a condition as a line."""
    return Text(str(condition), style=_STYLES[condition.effect])
