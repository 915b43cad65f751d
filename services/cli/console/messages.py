"""Protobuf messages for people and for programs, from their descriptors.

The suffix of a field's name gives its unit: `power_w` is titled "power" and shown as "55 W". A
field that a message gains appears in JSON and in `Messages.details` by itself; a table has the
columns that its command names by path ("spec.placement").
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cache
from typing import Any, Final, TextIO, TypeGuard

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Group, RenderableType
from rich.table import Table

from services.cli.console.output import condition_lines, document, table
from services.cli.console.quantities import carbon, energy, percent, seconds
from services.kit.rpc.condition_messages import conditions_from
from services.kit.units import BYTES_PER_MIB

Field = Any
"""A FieldDescriptor; the types of its stubs and of its implementation differ."""

Words = Callable[[Any], str]
Cell = str | Callable[[Any], RenderableType]
"""A field's path, or a function from a message to a cell."""

_UNITS: Final[Mapping[str, Words]] = {
    "_gco2e_per_kwh": "{:.1f} gCO2e/kWh".format,
    "_gco2e_per_h": lambda value: f"{carbon(value)}/h",
    "_gco2e": carbon,
    "_rps": "{:.1f} req/s".format,
    "_per_s": "{:.1f}/s".format,
    "_mhz": "{} MHz".format,
    "_bytes": lambda value: f"{value / BYTES_PER_MIB:.0f} MiB",
    "_s": seconds,
    "_w": "{:.0f} W".format,
    "_j": energy,
}
"""By the suffix of a field's name, the longest first."""

_QUANTITIES: Final[Mapping[str, Words]] = {
    **dict.fromkeys(("share", "used", "gap", "floor"), percent),
    **dict.fromkeys(("pue", "ratio"), "{:.2f}".format),
    "accuracy": "{:.4f}".format,
    "objective": "{:.2f} points".format,
}
"""By the last word of a field's name: quantities without a unit."""

_ABBREVIATIONS: Final = re.compile(r"\b(gpu|id|mig|pue|slo)(s?)\b")
_MORE_IS_BETTER: Final = ("objective", "accuracy")
_CONDITION: Final = "cinquefoil.condition.v1.Condition"

_MESSAGES: Final[Mapping[str, Words]] = {
    "google.protobuf.Timestamp": lambda value: f"{value.ToDatetime(UTC):%Y-%m-%d %H:%M:%S}",
    "google.protobuf.Duration": lambda value: seconds(value.ToNanoseconds() / 1e9),
    "google.protobuf.Value": lambda value: json.dumps(MessageToDict(value)),
    "cinquefoil.gpuagent.v1.Placement": lambda value: f"{value.profile}@{value.start}",
    "cinquefoil.gpuagent.v1.GpuType": lambda value: str(value.name),
}
"""Messages that one word can stand for."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of a message, nested messages included.

    Attributes:
        path: Of its field, from the message.
        label: Titles of the fields that lead to it, and the key in a map.
        key: The key in a map; "": the field is no map.
        field: The field.
        value: The value.
        text: The value, for people.
    """

    path: str
    label: str
    key: str
    field: Field
    value: Any
    text: str

    @property
    def more_is_better(self) -> bool:
        """True where a larger value is better than a smaller one."""
        return self.field.name in _MORE_IS_BETTER


def write_csv(messages: Sequence[Message], kind: type[Message], file: TextIO) -> None:
    """Write a line per message of a kind without nested ones; units are in the fields' names."""
    writer = csv.DictWriter(file, list(kind.DESCRIPTOR.fields_by_name), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(document, messages))


def title(field: Field) -> str:
    """Return a field's name for people, without its unit."""
    name: str = field.name
    words = name.removesuffix(_suffix(name)).replace("_", " ")
    return _ABBREVIATIONS.sub(lambda found: f"{found[1].upper()}{found[2]}", words)


@cache
def word(enum: Any, number: int) -> str:
    """Return an enum's value for people: PLAN_STATE_ACTIVE is "active"."""
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.name).upper() + "_"
    known = enum.values_by_number.get(number)
    name = known.name.removeprefix(prefix) if known else str(number)
    return "" if name == "UNSPECIFIED" else name.lower().replace("_", " ")


def values(message: Message) -> dict[str, Any]:
    """Return the values of a message itself for JSON: enums as words, None for what is not set."""
    found: dict[str, Any] = {}
    for name, enum, optional in _own_fields(message.DESCRIPTOR):
        value = None if optional and not message.HasField(name) else getattr(message, name)
        found[name] = value if enum is None or value is None else word(enum, value)
    return found


@cache
def _own_fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return name, enum and presence of the fields that have one value and are no message."""
    return tuple(
        (field.name, field.enum_type, field.has_presence)
        for field in kind.fields
        if field.message_type is None and not field.is_repeated
    )


class Messages:
    """Tables and details of messages.

    Args:
        names: Names of things that messages know by an identifier, for example of GPUs by UUID.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = names or {}

    def table(
        self, heading: str, messages: Iterable[Message], columns: Mapping[str, Cell]
    ) -> Table:
        """Return a row per message.

        Args:
            heading: Above the table; may be empty.
            messages: Of one kind.
            columns: Cells by title; a title that starts with ">" is aligned to the right.
        """
        rows = table(heading, *columns)
        for message in messages:
            rows.add_row(*(self._cell(message, cell) for cell in columns.values()))
        return rows

    def all_of(self, heading: str, messages: Sequence[Message]) -> Table:
        """Return a table of messages of one kind with a column for each of their set fields."""
        rows = [self._by_label(message) for message in messages]
        labels = dict.fromkeys(label for row in rows for label in row)
        columns = [
            f">{label}" if any(_number(row.get(label)) for row in rows) else label
            for label in labels
        ]
        cells = ([row[label].text if label in row else "" for label in labels] for row in rows)
        made = table(heading, *columns, rows=cells)
        for column in made.columns:
            column.no_wrap = False  # there may be many
        return made

    def details(self, message: Message, heading: str = "", hide: Iterable[str] = ()) -> Group:
        """Return every set field: values one below the other, then conditions and lists.

        Args:
            message: The message.
            heading: Above the values; may be empty.
            hide: Paths that are shown elsewhere, or not at all.
        """
        hidden = frozenset(hide)
        facts = [(each.label, each.text) for each in self.facts(message, hidden)]
        values = table(heading, "", "", rows=facts)
        values.show_header = False
        parts: list[RenderableType] = [values] if facts else []
        for field, value in _lists(message, hidden):
            if field.message_type.full_name == _CONDITION:
                parts += condition_lines(conditions_from(value))
            else:
                parts.append(self.all_of(title(field).capitalize(), value))
        return Group(*parts)

    def compared(
        self,
        heading: str,
        messages: Mapping[str, Message | None],
        last: tuple[str, Callable[[Fact, Fact], RenderableType]] | None = None,
    ) -> Table:
        """Return a column per message, for messages of one kind; a row per field that is not 0.

        Args:
            heading: Above the table.
            messages: By the title of their column; None: there is none.
            last: Title and cells of a last column, from numbers of the first two messages.
        """
        columns = [self._by_label(each) if each else {} for each in messages.values()]
        headings = (*messages, *((last[0],) if last else ()))
        rows = table(heading, "", *(f">{each}" for each in headings))
        known = {label: fact for column in columns for label, fact in column.items()}
        order = {path: n for n, path in enumerate(dict.fromkeys(f.path for f in known.values()))}
        for label in sorted(known, key=lambda each: (order[known[each].path], known[each].key)):
            found = [column.get(label) for column in columns]
            if not any(fact and (fact.value or fact.field.has_presence) for fact in found):
                continue
            cells: list[RenderableType] = [fact.text if fact else "" for fact in found]
            if last:
                one, other = found[:2]
                cells.append(last[1](one, other) if _number(one) and _number(other) else "")
            rows.add_row(label, *cells)
        return rows

    def facts(
        self, message: Message, hide: frozenset[str] = frozenset(), at: tuple[str, str] = ("", "")
    ) -> Iterator[Fact]:
        """Yield the set values of a message in order of its fields, those of nested ones too.

        Args:
            message: The message.
            hide: Paths to leave out.
            at: What paths and labels begin with.
        """
        for field, value in _set(message):
            path, label = f"{at[0]}{field.name}", f"{at[1]}{title(field)}"
            if path in hide or (_nests(field) and field.is_repeated):
                continue
            if _is_map(field):
                of = field.message_type.fields_by_name["value"]
                for key in sorted(value):
                    text = self._text(of, value[key], field.name)
                    name = self._names.get(str(key), str(key))
                    yield Fact(path, f"{label} {name}", name, field, value[key], text)
            elif _nests(field):
                yield from self.facts(value, hide, (f"{path}.", f"{label} "))
            else:
                yield Fact(path, label, "", field, value, self._text(field, value))

    def _by_label(self, message: Message) -> dict[str, Fact]:
        return {each.label: each for each in self.facts(message)}

    def _cell(self, message: Message, cell: Cell) -> RenderableType:
        if not isinstance(cell, str):
            return cell(message)
        *way, name = cell.split(".")
        for step in way:
            message = getattr(message, step)
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.has_presence and not message.HasField(name):
            return ""
        return self._text(field, getattr(message, name))

    def _text(self, field: Field, value: Any, name: str = "") -> str:
        """Return one value for people; `name`: of the field, where it is a map's value."""
        if field.is_repeated and not isinstance(value, str | bytes):
            return ", ".join(self._one(field, each, name or field.name) for each in value)
        return self._one(field, value, name or field.name)

    def _one(self, field: Field, value: Any, name: str) -> str:
        if field.message_type is not None:
            return _MESSAGES.get(field.message_type.full_name, self._inline)(value)
        if field.enum_type is not None:
            return word(field.enum_type, value)
        if isinstance(value, float) and not math.isfinite(value):
            return "never" if name.endswith("_s") else "unknown"
        words = _UNITS.get(_suffix(name)) or _QUANTITIES.get(name.rpartition("_")[2])
        if words is not None and isinstance(value, float | int):
            return words(value)
        return self._plain(value)

    def _plain(self, value: Any) -> str:
        match value:
            case bool():
                return "yes" if value else "no"
            case float():
                return f"{value:.4g}"
            case str():
                return self._names.get(value, value)
            case _:
                return str(value)

    def _inline(self, message: Message) -> str:
        return ", ".join(f"{each.label} {each.text}" for each in self.facts(message))


def _set(message: Message) -> Sequence[tuple[Field, Any]]:
    """Return the fields that are set, in order of their numbers."""
    return message.ListFields()


def _suffix(name: str) -> str:
    return next((suffix for suffix in _UNITS if name.endswith(suffix)), "")


def _is_map(field: Field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _nests(field: Field) -> bool:
    """Return whether a field has messages that no single word stands for."""
    kind = field.message_type
    return kind is not None and not _is_map(field) and kind.full_name not in _MESSAGES


def _lists(message: Message, hide: frozenset[str], at: str = "") -> Iterator[tuple[Field, Any]]:
    """Yield the lists of messages in a message and in those nested in it."""
    for field, value in _set(message):
        path = f"{at}{field.name}"
        if path not in hide and _nests(field):
            if field.is_repeated:
                yield field, value
            else:
                yield from _lists(value, hide, f"{path}.")


def _number(fact: Fact | None) -> TypeGuard[Fact]:
    return fact is not None and isinstance(fact.value, int | float)
