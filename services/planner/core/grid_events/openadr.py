"""Events of OpenADR 3 as orders of grid events: bounded, and judged one by one.

Source: OpenADR Alliance, "OpenADR 3.1.0 Definitions", sections 8 and 10; 3.0.1 likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cinquefoil.planner.v1.records import GridEvent
from services.kit.openadr import (
    Interval,
    Unreadable,
    as_list,
    as_number,
    as_object,
    intervals,
    name_of,
    units_of,
)
from services.planner.core.energy_prices.course import PriceStep, wrong_price

_WATTS: Final[Mapping[str, float]] = {"W": 1.0, "KW": 1e3, "MW": 1e6}
_KWH: Final[Mapping[str, float]] = {"KWH": 1.0, "MWH": 1e3}


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
        found = as_object(event, "the event")
        name = name_of(found)
        if not self._concerns(found.get("targets")):
            return [], []
        units = {**units, **units_of(found.get("payloadDescriptors"))}
        priority = found.get("priority")
        priority = priority if type(priority) is int and 0 <= priority < 2**32 else 0
        orders: list[GridEvent] = []
        prices: list[PriceStep] = []
        for each in intervals(found, first_seen):
            if (price := _price(each, units)) is not None:
                prices.append(PriceStep(each.start.timestamp(), each.end.timestamp(), price))
            if (limit := self._limit(each.payloads, units)) is not None:
                orders.append(
                    GridEvent(
                        event_id=f"{self.server}.{name}.{each.number}",
                        site=self.site,
                        start=each.start,
                        end=each.end,
                        priority=priority,
                        **limit,
                    )
                )
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
            given = as_object(payload, "payloads")
            kind, values = str(given.get("type")), as_list(given.get("values"), "values")
            unit = units.get(kind, "KW")
            if kind == "SIMPLE":
                level = as_number(values, kind)
                if level not in (0, 1, 2, 3):
                    raise Unreadable(f"SIMPLE: must be 0, 1, 2 or 3, got {level:g}")
                return {"level": int(level)} if level else None
            if kind == "ALERT_GRID_EMERGENCY":
                return {"level": self.emergency_level}
            if kind in ("IMPORT_CAPACITY_LIMIT", "DISPATCH_SETPOINT"):
                return _absolute(as_number(values, kind), unit, kind)
            if kind == "DISPATCH_SETPOINT_RELATIVE":
                return _relative(as_number(values, kind), unit, kind)
        return None


def leading(events: Sequence[object], most: int) -> Sequence[object]:
    """Return the first events, which have at most so many intervals together."""
    for at, event in enumerate(events):
        intervals = event.get("intervals") if isinstance(event, dict) else None
        most -= len(intervals) if isinstance(intervals, list) else 1
        if most < 0:
            return events[:at]
    return events


def _price(interval: Interval, units: Mapping[str, str]) -> float | None:
    """Return the price of an interval, EUR/kWh; None: it has none."""
    if (given := interval.value("PRICE")) is None:
        return None
    unit = units.get("PRICE", "KWH")
    if unit not in _KWH:
        raise Unreadable(f"PRICE: units must be KWH or MWH, got {unit[:20]!r}")
    currency = units.get("PRICE currency", "EUR")
    if currency != "EUR":
        raise Unreadable(f"PRICE: currency must be EUR, got {currency[:20]!r}")
    price = given / _KWH[unit]
    if problem := wrong_price(price):
        raise Unreadable(f"PRICE: {problem}")
    return price


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
