"""Carbon intensity over MQTT: what is published, and what is taken from others."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.carbon.v1.records import Forecast, ForecastPeriod
from services.carbon.core.model import Intensity, Sample
from services.carbon.core.mqtt_payload import record_of, sample_of
from services.kit.mqtt.payload import MAX_BYTES, Message, Refused, to_json

NOW = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


def intensity(value: float = 300.0, signal: str = "average", average: float = 240.0) -> Intensity:
    sample = Sample(NOW - HOUR, value, as_of=NOW - 2 * HOUR)
    kind = {"average": "average", "marginal": "marginal", "percentile": "percentile"}[signal]
    return Intensity("DE", kind, sample, average, "neso")  # type: ignore[arg-type] # of its literals


def said(payload: str, *, retained: bool = False, known: datetime | None = None) -> Sample | None:
    return sample_of(Message(payload.encode(), retained), "average", NOW, known)


def test_a_zone_is_published_with_its_average_its_ratio_and_its_age() -> None:
    record = record_of(intensity(), NOW, None)

    assert record["intensity_gco2e_per_kwh"] == 300
    assert (record["average_gco2e_per_kwh"], record["ratio"]) == (240, 1.25)
    assert (record["unit"], record["signal"]) == ("gCO2e/kWh", "average")
    assert (record["as_of"], record["staleness_s"]) == ("2026-03-28T22:30:00Z", 7200)


def test_a_percentile_is_never_published_as_a_mass() -> None:
    record = record_of(intensity(33, "percentile"), NOW, None)

    assert (record["unit"], record["percentile"]) == ("percentile", 33)
    assert not [key for key in record if "gco2e" in key]


def test_a_ratio_without_an_average_is_published_as_unknown() -> None:
    assert json.loads(to_json(record_of(intensity(average=0), NOW, None)))["ratio"] is None


def test_the_longest_forecast_fits_within_the_bound() -> None:
    step = timedelta(minutes=5)
    periods = tuple(
        ForecastPeriod(NOW + i * step, step, 1234.5678, 1.2, 4999.99) for i in range(73)
    )

    payload = to_json(record_of(intensity(), NOW, Forecast(periods, "provider:neso")))
    assert len(payload) < MAX_BYTES / 4


@given(st.floats(0, 5000), st.sampled_from(["average", "marginal", "percentile"]))
def test_what_one_service_publishes_another_can_read(value: float, signal: str) -> None:
    published = intensity(value / 50 if signal == "percentile" else value, signal)
    payload = to_json(record_of(published, NOW, None))

    heard = sample_of(Message(payload, retained=True), published.signal, NOW, None)
    assert heard is not None
    assert heard.intensity_gco2e_per_kwh == published.sample.intensity_gco2e_per_kwh
    assert heard.since == published.sample.since


def test_a_bare_number_holds_from_when_it_came() -> None:
    assert said("312.5") == Sample(NOW, 312.5)


def test_a_kept_number_of_unknown_age_counts_only_where_nothing_is_known() -> None:
    assert said("312", retained=True) == Sample(NOW, 312.0, "held")
    assert said("312", retained=True, known=NOW - HOUR) is None


def test_a_time_may_have_any_offset_and_becomes_utc() -> None:
    """Twice the same hour of a clock that is set back stays two instants."""
    for text, hour in (("2026-10-25T02:30:00+02:00", 0), ("2026-10-25T02:30:00+01:00", 1)):
        heard = said(json.dumps({"intensity_gco2e_per_kwh": 1, "since": text}))
        assert heard is not None
        assert heard.since == datetime(2026, 10, 25, hour, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ("-1", "not within 0..5000"),
        ("5001", "not within 0..5000"),
        ('{"intensity": 3}', "intensity_gco2e_per_kwh is required"),
        ('{"percentile": 3}', "intensity_gco2e_per_kwh is required"),
        ('{"intensity_gco2e_per_kwh": 3, "signal": "marginal"}', "this zone's is 'average'"),
        ('{"intensity_gco2e_per_kwh": 3, "since": "2026-10-25T02:30:00"}', "with an offset"),
        ('{"intensity_gco2e_per_kwh": 3, "since": "0001-01-01T00:00:00+14:00"}', "with an offset"),
        ('{"intensity_gco2e_per_kwh": 3, "since": 1}', "with an offset"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(payload: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        said(payload)
