"""Events of OpenADR 3 as orders of grid events: bounded, and judged one by one.

Source: OpenADR Alliance, "OpenADR 3.1.0 Definitions", sections 8 and 10; 3.0.1 likewise.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cinquefoil.planner.v1.records import GridEvent
from services.planner.core.energy_prices.course import PriceStep, wrong_price

MAX_INTERVALS: Final = 512
"""Most intervals of an event that are read."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_DURATION: Final = re.compile(
    r"P(?:(\d{1,4})Y)?(?:(\d{1,4})M)?(?:(\d{1,5})W)?(?:(\d{1,5})D)?"
    r"(?:T(?:(\d{1,6})H)?(?:(\d{1,7})M)?(?:(\d{1,9})(?:\.\d{1,9})?S)?)?"
)
_DURATION_S: Final = (31_557_600, 2_629_800, 604_800, 86_400, 3600, 60, 1)
_WATTS: Final[Mapping[str, float]] = {"W": 1.0, "KW": 1e3, "MW": 1e6}
_KWH: Final[Mapping[str, float]] = {"KWH": 1.0, "MWH": 1e3}
_NOW: Final = "0001-01-01"
"""A start that the standard reserves for "as soon as it is read"."""


class Unreadable(ValueError):
    """An event cannot be followed; the message says why."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the events of one server.

    Attributes:
        server: Its name in `grid.openadr`.
        site: Site that its events limit.
        ven_name: Name of this client, which targets may have.
        emergency_level: Level that ALERT_GRID_EMERGENCY stands for.
    """

    server: str
    site: str
    ven_name: str
    emergency_level: int

    def read(
        self, event: object, units: Mapping[str, str], first_seen: datetime
    ) -> tuple[list[GridEvent], list[PriceStep]]:
        """Return the limits and prices of an event: one for each interval that has one.

        Args:
            event: The event's JSON object, as it came.
            units: Units of its program by type of payload, for types without their own.
            first_seen: When it was read first, UTC: the start of an event that begins "now".

        Raises:
            Unreadable: It is not as the standard has it.
        """
        found = _object(event, "the event")
        name = found.get("id")
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise Unreadable("id: must be 1..128 letters, digits, _ or -")
        if not self._concerns(found.get("targets")):
            return [], []
        units = {**units, **units_of(found.get("payloadDescriptors"))}
        priority = found.get("priority")
        at, each_s = _period(found.get("intervalPeriod"), first_seen, name)
        orders: list[GridEvent] = []
        prices: list[PriceStep] = []
        for n, interval in enumerate(_list(found.get("intervals"), "intervals")):
            given = _object(interval, f"intervals[{n}]")
            if given.get("intervalPeriod") is not None:
                at, length_s = _period(given["intervalPeriod"], first_seen, name)
            else:
                length_s = each_s
            if at is None or length_s is None:
                raise Unreadable(f"intervals[{n}].intervalPeriod: start and duration are required")
            end = _later(at, length_s)
            payloads = _list(given.get("payloads"), "payloads")
            if (price := _price(payloads, units)) is not None:
                prices.append(PriceStep(at.timestamp(), end.timestamp(), price))
            limit = self._limit(payloads, units)
            if limit is not None:
                orders.append(
                    GridEvent(
                        event_id=f"{self.server}.{name}.{n}",
                        site=self.site,
                        start=at,
                        end=end,
                        priority=priority if type(priority) is int and 0 <= priority < 2**32 else 0,
                        **limit,
                    )
                )
            at = end
        return orders, prices

    def _concerns(self, targets: object) -> bool:
        """Return whether an event is for this client: a server may show those of others, too."""
        for target in targets if isinstance(targets, list) else ():
            if not isinstance(target, dict):
                continue  # of 3.1 a group's name: the server shows what this client belongs to
            names = target.get("values")
            own = {"VEN_NAME": self.ven_name, "RESOURCE_NAME": self.site}.get(
                str(target.get("type"))
            )
            if own is not None and isinstance(names, list) and own not in names:
                return False
        return True

    def _limit(self, payloads: Sequence[object], units: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the limit of an interval as fields of GridEvent; None: it has none."""
        for payload in payloads:
            given = _object(payload, "payloads")
            kind, values = str(given.get("type")), _list(given.get("values"), "values")
            unit = units.get(kind, "KW")
            if kind == "SIMPLE":
                level = _number(values, kind)
                if level not in (0, 1, 2, 3):
                    raise Unreadable(f"SIMPLE: must be 0, 1, 2 or 3, got {level:g}")
                return {"level": int(level)} if level else None
            if kind == "ALERT_GRID_EMERGENCY":
                return {"level": self.emergency_level}
            if kind in ("IMPORT_CAPACITY_LIMIT", "DISPATCH_SETPOINT"):
                return _absolute(_number(values, kind), unit, kind)
            if kind == "DISPATCH_SETPOINT_RELATIVE":
                return _relative(_number(values, kind), unit, kind)
        return None


def leading(events: Sequence[object], most: int) -> Sequence[object]:
    """Return the first events, which have at most so many intervals together."""
    for at, event in enumerate(events):
        intervals = event.get("intervals") if isinstance(event, dict) else None
        most -= len(intervals) if isinstance(intervals, list) else 1
        if most < 0:
            return events[:at]
    return events


def _price(payloads: Sequence[object], units: Mapping[str, str]) -> float | None:
    """Return the price of an interval, EUR/kWh; None: it has none."""
    for payload in payloads:
        given = _object(payload, "payloads")
        if given.get("type") != "PRICE":
            continue
        unit = units.get("PRICE", "KWH")
        if unit not in _KWH:
            raise Unreadable(f"PRICE: units must be KWH or MWH, got {unit[:20]!r}")
        currency = units.get("PRICE currency", "EUR")
        if currency != "EUR":
            raise Unreadable(f"PRICE: currency must be EUR, got {currency[:20]!r}")
        price = _number(_list(given.get("values"), "values"), "PRICE") / _KWH[unit]
        if problem := wrong_price(price):
            raise Unreadable(f"PRICE: {problem}")
        return price
    return None


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


def _absolute(value: float, unit: str, kind: str) -> dict[str, Any]:
    if unit == "PERCENT":
        return {"limit_share": value / 100}
    return {"limit_w": value * _factor(unit, kind)}


def _relative(value: float, unit: str, kind: str) -> dict[str, Any] | None:
    if value >= 0:
        return None  # more than usual may be drawn, and need not
    if unit == "PERCENT":
        return {"limit_share": max(1 + value / 100, 0.0)}
    return {"change_w": value * _factor(unit, kind)}


def _factor(unit: str, kind: str) -> float:
    if unit not in _WATTS:
        raise Unreadable(f"{kind}: units must be W, KW, MW or PERCENT, got {unit[:20]!r}")
    return _WATTS[unit]


def _number(values: Sequence[object], kind: str) -> float:
    value = values[0] if values else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e12:
        raise Unreadable(f"{kind}: values must have a finite number, got {str(value)[:40]!r}")
    return float(value)


def _period(given: object, first_seen: datetime, name: str) -> tuple[datetime | None, float | None]:
    """Return start and length of a period; None: it does not say so."""
    if given is None:
        return None, None
    found = _object(given, "intervalPeriod")
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


def _object(given: object, what: str) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise Unreadable(f"{what}: must be an object")
    return given


def _list(given: object, what: str) -> Sequence[object]:
    if not isinstance(given, list):
        raise Unreadable(f"{what}: must be a list")
    if len(given) > MAX_INTERVALS:
        raise Unreadable(f"{what}: at most {MAX_INTERVALS}, got {len(given)}")
    return given
