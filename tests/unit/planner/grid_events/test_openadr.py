"""Events of OpenADR: every payload that limits power, times, targets, and what cannot be read."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.openadr import Unreadable, duration_s
from services.planner.core.grid_events.openadr import Reader, leading
from tests.support.examples import examples

START = datetime(2030, 1, 7, 17, tzinfo=UTC)
READER = Reader("utility", "hall", "cinquefoil", 3)


def event(*payloads: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an event with an interval of an hour for each payload."""
    return {
        "id": "e1",
        "programID": "p",
        "intervalPeriod": {"start": "2030-01-07T17:00:00Z", "duration": "PT1H"},
        "intervals": [{"id": n, "payloads": [each]} for n, each in enumerate(payloads)],
        **more,
    }


def payload(kind: str, value: object) -> dict[str, Any]:
    return {"type": kind, "values": [value]}


def units(kind: str, unit: str) -> dict[str, Any]:
    return {"payloadDescriptors": [{"payloadType": kind, "units": unit}]}


def test_intervals_of_all_events_together_are_bounded() -> None:
    """1,000 events with 512 intervals each held the planner for seconds at each poll."""
    many = event() | {"intervals": [{}] * 512}

    assert len(leading([many] * 1000, 8192)) == 16
    assert len(leading([7, None, {"intervals": "x"}], 2)) == 2
    assert leading([many], 512) == [many]


@pytest.mark.parametrize(
    ("given_event", "name", "value"),
    [
        (event(payload("SIMPLE", 2)), "level", 2),
        (event(payload("ALERT_GRID_EMERGENCY", "brown-out")), "level", 3),
        (event(payload("IMPORT_CAPACITY_LIMIT", 20)), "limit_w", 20_000),
        (
            event(payload("DISPATCH_SETPOINT", 0.02), **units("DISPATCH_SETPOINT", "MW")),
            "limit_w",
            20_000,
        ),
        (
            event(payload("DISPATCH_SETPOINT", 75), **units("DISPATCH_SETPOINT", "PERCENT")),
            "limit_share",
            0.75,
        ),
        (event(payload("DISPATCH_SETPOINT_RELATIVE", -5)), "change_w", -5000),
    ],
)
def test_payloads_become_limits(given_event: dict[str, Any], name: str, value: float) -> None:
    (order,) = READER.read(given_event, {}, START)[0]

    assert getattr(order, name) == pytest.approx(value)
    assert (order.event_id, order.site) == ("utility.e1.0", "hall")
    assert (order.start, order.end) == (START, START + timedelta(hours=1))


@pytest.mark.parametrize(
    "given_event",
    [
        event(payload("SIMPLE", 0)),
        event(payload("PRICE", 0.3)),
        event(payload("DISPATCH_SETPOINT_RELATIVE", 5)),
        event(payload("SIMPLE", 1), targets=[{"type": "VEN_NAME", "values": ["another"]}]),
    ],
)
def test_what_limits_nothing_here_is_no_order(given_event: dict[str, Any]) -> None:
    assert READER.read(given_event, {}, START)[0] == []


def test_intervals_follow_one_another_unless_they_have_times_of_their_own() -> None:
    given_event = event(payload("SIMPLE", 1), payload("SIMPLE", 2), payload("SIMPLE", 3))
    given_event["intervals"][2]["intervalPeriod"] = {
        "start": "2030-01-08T00:00:00+01:00",
        "duration": "PT30M",
    }

    orders = READER.read(given_event, {}, START)[0]

    assert [order.start.hour for order in orders] == [17, 18, 23]
    assert orders[2].end - orders[2].start == timedelta(minutes=30)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "a b"},
        {"id": 7},
        {"intervals": "many"},
        {"intervals": [{}] * 513},
        {"intervals": [7]},
        {"intervalPeriod": None},
        {"intervalPeriod": {"start": "soon", "duration": "PT1H"}},
        {"intervalPeriod": {"start": "2030-01-07T17:00:00Z", "duration": "an hour"}},
        {"intervals": [{"payloads": [payload("SIMPLE", 7)]}]},
        {"intervals": [{"payloads": [payload("IMPORT_CAPACITY_LIMIT", "20")]}]},
        {"intervals": [{"payloads": [payload("IMPORT_CAPACITY_LIMIT", 1e300)]}]},
        {"intervals": [{"payloads": [{"type": "SIMPLE"}]}]},
        units("IMPORT_CAPACITY_LIMIT", "HORSES")
        | {"intervals": [{"payloads": [payload("IMPORT_CAPACITY_LIMIT", 2)]}]},
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(change: dict[str, Any]) -> None:
    with pytest.raises(Unreadable, match=r"\w+"):
        READER.read(event(payload("SIMPLE", 1)) | change, {}, START)[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@examples(0.25)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("id", "targets", "priority", "payloadDescriptors"), JSON),
            "intervalPeriod": JSON | st.fixed_dictionaries({"start": JSON, "duration": JSON}),
            "intervals": JSON | st.lists(st.fixed_dictionaries({"payloads": JSON}), max_size=2),
        },
    )
)
def test_whatever_a_server_says_is_read_or_refused(found: dict[str, Any]) -> None:
    with contextlib.suppress(Unreadable):
        READER.read(event(payload("SIMPLE", 1)) | found, {}, START)[0]


def test_durations_are_those_of_iso_8601() -> None:
    assert duration_s("P1DT2H3M4.5S") == 86_400 + 7200 + 180 + 4
    assert duration_s("P9999Y") == float("inf")
    for wrong in ("", "P", "1h", "PT", None, "P1D" * 100):
        with pytest.raises(Unreadable):
            duration_s(wrong)


def test_prices_are_read_beside_limits() -> None:
    """An event may have both; per MWh where its descriptor says so, in euros."""
    both = {"payloads": [payload("PRICE", 90), payload("SIMPLE", 1)]}
    orders, prices = READER.read(
        event(**units("PRICE", "MWH"))
        | {"intervals": [both, {"payloads": [payload("PRICE", -5)]}]},
        {},
        START,
    )
    assert [order.level for order in orders] == [1]
    hour = START.timestamp()
    assert [each.start_s - hour for each in prices] == [0.0, 3600.0]
    assert [each.eur_per_kwh for each in prices] == pytest.approx([0.09, -0.005])


@pytest.mark.parametrize(
    ("value", "descriptor"),
    [
        (1e9, {}),
        (float("nan"), {}),
        ("cheap", {}),
        (0.1, {"units": "THERM"}),
        (0.1, {"currency": "USD"}),
    ],
)
def test_what_is_no_price_is_refused(value: object, descriptor: dict[str, str]) -> None:
    """Absurd, not a number, of another unit or currency: the field is named."""
    descriptors = [{"payloadType": "PRICE", **descriptor}]
    with pytest.raises(Unreadable, match="PRICE"):
        READER.read(event(payload("PRICE", value), payloadDescriptors=descriptors), {}, START)
