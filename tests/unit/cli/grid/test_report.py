"""The report of a grid event as a utility and an auditor read it."""

import csv
import io
from datetime import UTC, datetime

import pytest

from cinquefoil.planner.v1.grid_event_pb2 import (
    GridEvent,
    GridEventPoint,
    GridEventReport,
    ModelInEvent,
)
from services.cli.grid.report import as_csv, summary

START = datetime(2030, 1, 7, 17, tzinfo=UTC)


def of_event() -> GridEventReport:
    event = GridEvent(event_id="evening", site="hall", limit_w=750.0, principal="ada")
    event.start.FromDatetime(START)
    event.end.FromDatetime(START.replace(hour=20))
    event.announced_at.FromDatetime(START.replace(hour=9))
    point = GridEventPoint(metered_w=700.0, baseline_w=1000.0, limit_w=750.0)
    point.since.FromDatetime(START)
    return GridEventReport(
        event=event,
        step_s=60,
        points=[point],
        models=[ModelInEvent(model="digits", answered=100)],
        energy_j=42_000.0,
        carbon_gco2e=2.0,
        metered_points=1,
        event_points=180,
        zone="Z",
    )


@pytest.mark.parametrize(
    ("signal", "scope"),
    [
        ("average", "GHG Protocol scope 2, location-based"),
        ("marginal", "not scope 2 of the GHG Protocol"),
    ],
)
def test_scope_2_is_claimed_of_average_intensities_only(signal: str, scope: str) -> None:
    """The protocol's location-based method takes average factors."""
    assert scope in dict(summary(of_event(), signal))["emissions"]


def test_a_summary_says_who_ordered_it_and_how_much_was_metered() -> None:
    """An auditor sees gaps of the meter, and the order's time."""
    found = dict(summary(of_event(), "average"))
    assert found["announced (UTC)"] == "2030-01-07T09:00:00Z by ada"
    assert found["metered"].startswith("1 of 180 points of 60 s")


def test_a_row_of_the_csv_stands_alone() -> None:
    """Event, site, start and length are in each, beside metered, promised and shed power."""
    row = next(csv.DictReader(io.StringIO(as_csv(of_event()))))
    assert (row["event"], row["site"], row["since"]) == ("evening", "hall", "2030-01-07T17:00:00Z")
    assert [float(row[name]) for name in ("length_s", "metered_w", "promised_w", "shed_w")] == [
        60.0,
        700.0,
        250.0,
        300.0,
    ]
