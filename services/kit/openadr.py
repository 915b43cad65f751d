"""Events of OpenADR 3: intervals in time with their payloads, bounded.

Source: OpenADR Alliance, "OpenADR 3.1.0 Definitions", sections 8 and 10; 3.0.1 likewise.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

MAX_INTERVALS: Final = 512
"""Most intervals of an event that are read."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_DURATION: Final = re.compile(
    r"P(?:(\d{1,4})Y)?(?:(\d{1,4})M)?(?:(\d{1,5})W)?(?:(\d{1,5})D)?"
    r"(?:T(?:(\d{1,6})H)?(?:(\d{1,7})M)?(?:(\d{1,9})(?:\.\d{1,9})?S)?)?"
)
_DURATION_S: Final = (31_557_600, 2_629_800, 604_800, 86_400, 3600, 60, 1)
_NOW: Final = "0001-01-01"
"""A start that the standard reserves for "as soon as it is read"."""


class Unreadable(ValueError):
    """An event cannot be followed; the message says why."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of an event.

    Attributes:
        number: Its position.
        start, end: Its time, UTC.
        payloads: Its payloads, as they came.
    """

    number: int
    start: datetime
    end: datetime
    payloads: Sequence[object]

    def value(self, kind: str) -> float | None:
        """Return the number of its payload of a type; None: it has none.

        Raises:
            Unreadable: The payload has no finite number.
        """
        for payload in self.payloads:
            given = as_object(payload, "payloads")
            if given.get("type") == kind:
                return as_number(as_list(given.get("values"), "values"), kind)
        return None


def name_of(event: Mapping[str, Any]) -> str:
    """Return an event's id.

    Raises:
        Unreadable: It has none that may be used.
    """
    name = event.get("id")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise Unreadable("id: must be 1..128 letters, digits, _ or -")
    return name


def intervals(event: Mapping[str, Any], first_seen: datetime) -> Iterator[Interval]:
    """Yield the intervals of an event in order, each with its time.

    Args:
        event: The event.
        first_seen: When it was read first, UTC: the start of an event that begins "now".

    Raises:
        Unreadable: It is not as the standard has it.
    """
    name = name_of(event)
    at, each_s = _period(event.get("intervalPeriod"), first_seen, name)
    for n, interval in enumerate(as_list(event.get("intervals"), "intervals")):
        given = as_object(interval, f"intervals[{n}]")
        length_s = each_s
        if given.get("intervalPeriod") is not None:
            at, length_s = _period(given["intervalPeriod"], first_seen, name)
        if at is None or length_s is None:
            raise Unreadable(f"intervals[{n}].intervalPeriod: start and duration are required")
        end = _later(at, length_s)
        yield Interval(n, at, end, as_list(given.get("payloads"), "payloads"))
        at = end


def units_of(descriptors: object) -> dict[str, str]:
    """Return the unit of each type of payload, of an event's or a program's descriptors.

    Currencies are beside them, as "PRICE currency".
    """
    found = {}
    for each in descriptors[:64] if isinstance(descriptors, list) else ():
        if isinstance(each, dict) and isinstance(each.get("units"), str):
            found[str(each.get("payloadType"))] = each["units"].upper()
        if isinstance(each, dict) and isinstance(each.get("currency"), str):
            found[f"{each.get('payloadType')} currency"] = each["currency"].upper()
    return found


def as_number(values: Sequence[object], kind: str) -> float:
    """Return the first of a payload's values, a number.

    Raises:
        Unreadable: There is no finite number.
    """
    value = values[0] if values else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e12:
        raise Unreadable(f"{kind}: values must have a finite number, got {str(value)[:40]!r}")
    return float(value)


def _period(given: object, first_seen: datetime, name: str) -> tuple[datetime | None, float | None]:
    """Return start and length of a period; None: it does not say so."""
    if given is None:
        return None, None
    found = as_object(given, "intervalPeriod")
    start, length = found.get("start"), found.get("duration")
    return (
        None if start is None else _start(start, found.get("randomizeStart"), first_seen, name),
        None if length is None else duration_s(length),
    )


def _start(given: object, spread: object, first_seen: datetime, name: str) -> datetime:
    if not isinstance(given, str) or len(given) > 64:
        raise Unreadable("intervalPeriod.start: must be a time as RFC 3339 has it")
    if given.startswith(_NOW):
        return first_seen
    try:
        at = datetime.fromisoformat(given)
        at = at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Unreadable(f"intervalPeriod.start: {given[:40]!r} is no time") from error
    if spread is None:
        return at
    # The same part at every poll, and another for every client's event.
    return _later(at, duration_s(spread) * (zlib.crc32(name.encode()) / 2**32))


def duration_s(given: object) -> float:
    """Return an ISO 8601 duration, s; infinite: the standard's "P9999Y".

    Raises:
        Unreadable: It is none.
    """
    found = _DURATION.fullmatch(given) if isinstance(given, str) and len(given) <= 64 else None
    if found is None or not any(found.groups()):
        raise Unreadable(f"duration: {str(given)[:40]!r} is no ISO 8601 duration such as PT3H")
    if given == "P9999Y":
        return math.inf
    return float(
        sum(int(n) * s for n, s in zip(found.groups(), _DURATION_S, strict=True) if n is not None)
    )


def _later(at: datetime, length_s: float) -> datetime:
    try:
        return at + timedelta(seconds=length_s)
    except (OverflowError, ValueError):
        return datetime.max.replace(tzinfo=UTC)


def as_object(given: object, what: str) -> Mapping[str, Any]:
    """Return a JSON object.

    Raises:
        Unreadable: It is none.
    """
    if not isinstance(given, dict):
        raise Unreadable(f"{what}: must be an object")
    return given


def as_list(given: object, what: str) -> Sequence[object]:
    """Return a JSON list of at most MAX_INTERVALS.

    Raises:
        Unreadable: It is none, or longer.
    """
    if not isinstance(given, list):
        raise Unreadable(f"{what}: must be a list")
    if len(given) > MAX_INTERVALS:
        raise Unreadable(f"{what}: at most {MAX_INTERVALS}, got {len(given)}")
    return given
