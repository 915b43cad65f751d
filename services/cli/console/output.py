"""Output that several commands share: JSON, tables, conditions, and a sign of work."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich import box
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.status import Status
from rich.table import Table
from rich.text import Text

from cinquefoil.condition.v1.records import Condition
from services.cli.console.wrapping import FittingTable
from services.kit.conditions import Effect, described, effect_of

_STYLES: Final = {Effect.STOPS: "red", Effect.WAITS: "yellow", Effect.DEGRADES: "yellow"}


def document(message: Message) -> dict[str, Any]:
    """Return a message for JSON, by protobuf's own mapping, with the contract's field names.

    Numbers that are 0 and texts that are empty are there too.
    """
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def as_line(value: object) -> str:
    """Return a value as one line of JSON: messages, dataclasses and objects by their fields."""
    return json.dumps(value, default=_fields)


def print_json(value: object) -> None:
    """Print a value as `as_line` has it, indented, in colour on a terminal."""
    Console().print_json(as_line(value))


def show(value: object, render: Callable[[], RenderableType], *, as_json: bool) -> None:
    """Print a value as JSON, or as `render` returns it."""
    if as_json:
        print_json(value)
    else:
        Console().print(render())


def _fields(value: Any) -> Any:
    if isinstance(value, Message):
        return document(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else vars(value)


def table(title: str, *columns: str, rows: Iterable[Sequence[RenderableType]] = ()) -> Table:
    """Return a table that fits a terminal of 80 columns: its numbers never break.

    Args:
        title: Above it; may be empty.
        columns: Headings. One that starts with ">" is aligned to the right, as in a format.
        rows: A cell for each column.
    """
    made = FittingTable(
        title=f"\n{title}" if title else None,
        title_justify="left",
        title_style="bold",
        min_width=len(title),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        show_edge=False,
    )
    for column in columns:
        right = column.startswith(">")
        heading = column.removeprefix(">")
        made.add_column(
            heading, justify="right" if right else "left", overflow="fold", no_wrap=right
        )
    for row in rows:
        made.add_row(*row)
    return made


def working(what: str) -> Status:
    """Return a context that animates a line on standard error, if that is a terminal."""
    return Console(stderr=True).status(what)


@contextmanager
def downloading(
    name: str, console: Console, total_bytes: int | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a bar of a download; yield what takes the size of each part, bytes."""
    columns = (
        *(TextColumn(name), BarColumn(), DownloadColumn()),
        *(TransferSpeedColumn(), TimeRemainingColumn()),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(name, total=total_bytes)
        yield lambda size_bytes: bar.advance(task, size_bytes)


def condition_lines(conditions: Iterable[Condition]) -> Iterator[Text]:
    """Yield a line for each condition, those that stop something first."""
    for each in sorted(conditions, key=lambda each: list(Effect).index(effect_of(each))):
        yield condition_line(each)


def condition_line(condition: Condition) -> Text:
    """Return a condition as a line."""
    return Text(described(condition), style=_STYLES[effect_of(condition)])
