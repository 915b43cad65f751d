"""Prices of files and of ENTSO-E's documents: what is read, and what is refused by its place."""

from pathlib import Path

import pytest

from services.kit.errors import Unavailable
from services.planner.adapters.price_sources import document_prices, file_prices
from services.planner.core.energy_prices.course import PriceStep

NS = "urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3"
NOTHING = (
    b"<Acknowledgement_MarketDocument><Reason><text>No matching data found</text></Reason>"
    b"</Acknowledgement_MarketDocument>"
)
DAY_S = 1_893_456_000.0  # 2030-01-01


def document(points: str, *, unit: str = "MWH", curve: str = "A03") -> bytes:
    return f"""<?xml version="1.0"?><Publication_MarketDocument xmlns="{NS}"><TimeSeries>
    <currency_Unit.name>EUR</currency_Unit.name>
    <price_Measure_Unit.name>{unit}</price_Measure_Unit.name><curveType>{curve}</curveType>
    <Period><timeInterval><start>2030-01-01T00:00Z</start><end>2030-01-01T04:00Z</end>
    </timeInterval><resolution>PT60M</resolution>{points}</Period></TimeSeries>
    </Publication_MarketDocument>""".encode()


def point(position: int, price: object) -> str:
    return f"<Point><position>{position}</position><price.amount>{price}</price.amount></Point>"


def test_a_document_has_hours_and_gaps_that_repeat() -> None:
    """Curve A03 leaves out what does not change; prices below 0 are prices; per MWh."""
    found = document_prices(document(point(1, 90) + point(3, -5.5)))
    assert [each.start_s - DAY_S for each in found] == [0.0, 3600.0, 7200.0, 10800.0]
    assert [each.eur_per_kwh for each in found] == pytest.approx([0.09, 0.09, -0.0055, -0.0055])
    assert len(document_prices(document(point(1, 90) + point(3, 1), curve="A01"))) == 2


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (document(point(1, 1e9)), "price.amount"),
        (document(point(1, "dear")), "ValueError"),
        (document(point(1, 90), unit="KWH"), "EUR per MWH"),
        (document(""), "no prices"),
        (b"<html>no", "not XML"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "not XML"),
        (b"<a>" * 100_000, "not XML"),
        (NOTHING, "no prices of that time"),
    ],
)
def test_what_is_no_document_of_prices_is_refused(body: bytes, named: str) -> None:
    """A wrong figure, unit, or kind of document; one of entities or a hundred thousand levels."""
    with pytest.raises(Unavailable, match=named):
        document_prices(body)


def test_a_file_has_steps_until_the_next(tmp_path: Path) -> None:
    """In either unit; the last step is as long as the one before."""
    file = tmp_path / "prices.csv"
    file.write_text("start,eur_per_mwh\n2030-01-01T00:00:00Z,90\n2030-01-01T01:00:00+00:00,-10\n")
    hour = DAY_S + 3600
    assert file_prices(file, DAY_S) == [
        PriceStep(DAY_S, hour, 0.09),
        PriceStep(hour, hour + 3600, -0.01),
    ]
    assert file_prices(file, DAY_S + 30 * 86_400) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "first line"),
        ("start,price\n", "first line"),
        ("start,eur_per_kwh\n", "no prices"),
        ("start,eur_per_kwh\n2030-01-01,nan\n", "line 2: eur_per_kwh"),
        ("start,eur_per_kwh\n2030-01-01,85\n", "another unit"),
        ("start,eur_per_kwh\nsoon,0.1\n", "line 2"),
        ("start,eur_per_kwh\n2030-01-01\n", "line 2"),
        ("start,eur_per_kwh\n2030-01-02,0.1\n2030-01-01,0.1\n", "line 3: start"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_its_line(tmp_path: Path, text: str, named: str) -> None:
    """Nothing of it counts."""
    file = tmp_path / "prices.csv"
    file.write_text(text)
    with pytest.raises(Unavailable, match=named):
        file_prices(file, DAY_S)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """By its path."""
    with pytest.raises(Unavailable, match=r"none\.csv"):
        file_prices(tmp_path / "none.csv", DAY_S)
