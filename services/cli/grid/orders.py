"""Announces grid events, from options or a file."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import typer
import yaml
from google.protobuf import json_format

from cinquefoil.planner.v1.grid_event_pb2 import GridEvent
from cinquefoil.planner.v1.planner_pb2 import SetGridEventRequest
from services.cli.client import connected
from services.cli.console.durations import later, seconds
from services.cli.console.output import show
from services.cli.grid.show import event_table
from services.cli.plan.orders import ORDER_S
from services.kit.config.loader import load
from services.kit.errors import InvalidArgument, ServiceError

_POWER: Final = re.compile(r"(-?)(\d+(?:\.\d+)?)\s*(MW|kW|W|%)")
_WATTS: Final = {"MW": 1e6, "kW": 1e3, "W": 1.0}
_TIME: Final = re.compile(r"([01]?\d|2[0-3]):[0-5]\d")
_MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Order:
    """Options of an event, as they were typed."""

    site: str
    limit: str
    level: int
    start: str
    length: str
    until: str
    ramp: str
    priority: int
    name: str

    def message(self, now: datetime) -> GridEvent:
        """Return the event.

        Raises:
            BadParameter: An option cannot be read.
        """
        event = GridEvent(
            event_id=self.name, site=self.site, level=self.level, priority=self.priority
        )
        if self.limit:
            _set_limit(event, self.limit)
        start = _read("--from", lambda: _when(self.start, now)) if self.start else now
        if bool(self.length) == bool(self.until):
            raise typer.BadParameter("give --for or --until", param_hint="--for")
        if self.length:
            length_s = _read("--for", lambda: seconds(self.length))
            end = start + timedelta(seconds=length_s)
        else:
            end = _read("--until", lambda: _when(self.until, now))
        event.ramp_s = _read("--ramp", lambda: seconds(self.ramp))
        if self.start:
            event.start.FromDatetime(start)
        event.end.FromDatetime(end)
        return event


def _read(option: str, read: Any) -> Any:
    try:
        return read()
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _when(text: str, now: datetime) -> datetime:
    """Return a time: "17:00" is the next one, UTC; otherwise as `later`."""
    if not _TIME.fullmatch(text):
        return later(text, now)
    hour, minute = map(int, text.split(":"))
    today = now.astimezone(UTC).replace(hour=hour, minute=minute, second=0, microsecond=0)
    return today if today > now else today + timedelta(days=1)


def _set_limit(event: GridEvent, text: str) -> None:
    found = _POWER.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no power: write 20kW, 750W, 75% or -5kW", param_hint="--limit"
        )
    sign, number, unit = found.groups()
    if unit == "%":
        share = float(number) / 100
        event.limit_share = 1 - share if sign else share
    elif sign:
        event.change_w = -float(number) * _WATTS[unit]
    else:
        event.limit_w = float(number) * _WATTS[unit]


async def announce(config: Path, order: Order, *, as_json: bool) -> None:
    """Announce one event, and print it as the planner keeps it."""
    await _send(config, [order.message(datetime.now(UTC))], as_json=as_json)


async def announce_file(config: Path, file: Path, *, as_json: bool) -> None:
    """Announce the events of a file, in order, up to the first that is refused."""
    await _send(config, list(read_events(file)), as_json=as_json)


def read_events(file: Path) -> list[GridEvent]:
    """Return the events of a YAML or JSON file; fields have the names of the message GridEvent.

    Raises:
        InvalidArgument: The file is too long, or no list of events.
    """
    with file.open("rb") as source:
        text = source.read(_MAX_FILE_BYTES + 1)
    if len(text) > _MAX_FILE_BYTES:
        raise InvalidArgument(f"{file}: at most {_MAX_FILE_BYTES} bytes")
    try:
        found = yaml.load(text, _TextLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{file}: no YAML: {error}") from error
    if not isinstance(found, list):
        raise InvalidArgument(f"{file}: must be a list of events")
    return [_event_of(file, n, each) for n, each in enumerate(found)]


class _TextLoader(yaml.SafeLoader):
    """Leaves times as text, for the message to read."""


_TextLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _event_of(file: Path, number: int, given: Any) -> GridEvent:
    try:
        return json_format.ParseDict(given, GridEvent())
    except (json_format.ParseError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{file}: event {number}: {error}") from error


async def _send(config: Path, events: list[GridEvent], *, as_json: bool) -> None:
    kept: list[GridEvent] = []
    try:
        async with connected(load(config)) as clients:
            for event in events:
                request = SetGridEventRequest(event=event)
                answer = await clients.planner.SetGridEvent(request, timeout=ORDER_S)
                kept.append(answer.event)
    except ServiceError:
        if kept:
            typer.echo(f"{len(kept)} of {len(events)} events were announced.", err=True)
        raise
    show(kept, lambda: event_table(kept), as_json=as_json)
