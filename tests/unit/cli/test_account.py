"""The account as people read it: windows, rows, tables, lines and hours."""

import csv
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cinquefoil.planner.v1.planner_pb2 import AccountEntry
from services.cli.account import FIGURES, by_hour, elsewhere, render, rows
from services.cli.console.durations import instant
from services.cli.console.messages import write_csv

NOW = datetime(2026, 3, 8, 12, 30, tzinfo=UTC)


def entry(hour: int = 0, model: str = "", **figures: Any) -> AccountEntry:
    made = AccountEntry(model=model, **figures)
    made.hour.FromDatetime(datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=hour))
    return made


ENTRIES = [
    entry(0, energy_j=50.0, idle_j=40.0, unattributed_j=10.0, carbon_gco2e=5.0, idle_gco2e=4.0,
          unattributed_gco2e=1.0, embodied_gco2e=2.0, base_energy_j=50.0, base_carbon_gco2e=5.0),
    entry(0, "chat", energy_j=30.0, carbon_gco2e=3.0, base_carbon_gco2e=8.0, requests=10,
          output_tokens=600),
    entry(1, "chat", energy_j=70.0, carbon_gco2e=7.0, base_carbon_gco2e=12.0, requests=10,
          idle_share_gco2e=2.0, embodied_gco2e=1.0),
    entry(3, "digits", energy_j=20.0, carbon_gco2e=2.0, base_carbon_gco2e=1.0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", datetime(2026, 3, 1, 12, 30, tzinfo=UTC)),
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01T14:00+02:00", datetime(2026, 3, 1, 12, tzinfo=UTC)),
    ],
)
def test_an_instant_is_an_age_or_a_time(text: str, expected: datetime) -> None:
    assert instant(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "999999999w"])
def test_what_is_no_time_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: write an age such as"):
        instant(text, NOW)


def test_regions_sum_to_the_total_without_what_others_emitted() -> None:
    """A peer's emissions for this region's clients are shown beside the account, not in it."""
    entries = [
        entry(0, energy_j=50.0, idle_j=50.0, carbon_gco2e=5.0, idle_gco2e=5.0),
        entry(0, origin="home", energy_j=30.0, carbon_gco2e=3.0, requests=3),
        entry(0, origin="peer", energy_j=10.0, carbon_gco2e=1.0, requests=1),
        entry(0, origin="home", emitted_in="peer", energy_j=8.0, carbon_gco2e=0.1, requests=2),
        entry(1, origin="home", emitted_in="peer", energy_j=8.0, carbon_gco2e=0.1, requests=2),
    ]
    *parts, total = rows(entries, "region")
    (away,) = elsewhere(entries)

    assert [row.name for row in parts] == ["home", "peer", "(idle)", "(other)"]
    assert total.carbon_gco2e == pytest.approx(9.0)
    assert len(by_hour(entries, "region")) == 1
    assert (away.region, away.requests, away.energy_j) == ("peer", 4, 16.0)


def test_rows_sum_to_the_total_with_what_no_model_used() -> None:
    *parts, total = rows(ENTRIES, "model")

    assert [row.name for row in parts] == ["chat", "digits", "(idle)", "(other)"]
    for name in set(FIGURES) - {"idle_share_j", "idle_share_gco2e"}:
        assert getattr(total, name) == pytest.approx(sum(getattr(each, name) for each in ENTRIES))
        assert getattr(total, name) == pytest.approx(sum(getattr(row, name) for row in parts))


def test_sci_of_a_model_has_its_share_of_idle_and_embodied_carbon() -> None:
    """The total has the idle and embodied carbon of all models once."""
    chat, *_, total = rows(ENTRIES, "model")

    assert chat.gco2e_per_request == pytest.approx((10.0 + 2.0 + 1.0) / 20)
    assert chat.gco2e_per_token == pytest.approx(13.0 / 600)
    assert total.gco2e_per_request == pytest.approx((17.0 + 3.0) / 20)


def test_savings_are_shown_and_so_are_losses() -> None:
    chat, digits, *_ = rows(ENTRIES, "model")

    assert (chat.saved_gco2e, chat.saved_ratio) == (10.0, 0.5)
    assert (digits.saved_gco2e, digits.saved_ratio) == (-1.0, -1.0)


def test_what_ran_on_other_hardware_than_base_is_not_compared_and_saves_nothing() -> None:
    """A model on cores emits 400 times what BASE would on GPUs: which is not a loss of a plan."""
    cores = entry(0, "cores", energy_j=500.0, carbon_gco2e=40.0, base_carbon_gco2e=0.1)
    chat = entry(0, "chat", energy_j=100.0, carbon_gco2e=5.0, base_carbon_gco2e=10.0)
    found = rows([cores, chat], "model")
    console = Console(width=80, file=StringIO(), record=True)
    console.print(render(found, "model", "2026-03-01 to 2026-03-02 UTC"))
    words = " ".join(console.export_text().split())

    assert [row.saved_gco2e for row in found] == [5.0, 0.0, 5.0]
    assert [row.saved_ratio for row in found] == [0.5, None, pytest.approx(5.0 / 50.0)]
    assert "Not compared: cores." in words
    assert "-" not in words.split("cores", 1)[1].split("total", 1)[0]


def test_savings_are_shown_with_their_error_and_its_sources() -> None:
    """Errors of one source are common to all entries, sources are independent of one another."""
    errors = {"profile_error_gco2e": 1.5, "meter_error_gco2e": -1.0}
    entries = [
        entry(hour, "chat", carbon_gco2e=5.0, base_carbon_gco2e=10.0, **errors) for hour in range(2)
    ]
    total = rows(entries, "model")[-1]
    console = Console(width=80, file=StringIO(), record=True)
    console.print(render(rows(entries, "model"), "model", "2026-03-01 to 2026-03-02 UTC"))

    assert total.saved_error_gco2e == pytest.approx(13**0.5)
    assert "50.0 % ± 18" in console.export_text(clear=False)
    words = " ".join(console.export_text().split())
    assert "saved (50.0 % ± 18.0 %; of it profiles 15.0 %, meters 10.0 %)." in words


def test_a_table_fits_eighty_columns() -> None:
    """With all columns but idle shares, which few deployments have."""
    entries = [AccountEntry.FromString(each.SerializeToString()) for each in ENTRIES]
    for each in entries:
        each.ClearField("idle_share_gco2e")
        each.profile_error_gco2e = 0.1 * each.base_carbon_gco2e
    console = Console(width=80, file=StringIO(), record=True)
    console.print(render(rows(entries, "model"), "model", "2026-03-01 to 2026-03-02 UTC"))
    text = console.export_text()

    assert "chat" in text
    assert "50.0 %" in text
    assert "550 mg" in text
    assert "9 gCO2e saved (34.6 % ± 8.1 %" in text
    assert "…" not in text


def test_an_empty_account_says_so() -> None:
    console = Console(width=80, file=StringIO(), record=True)
    console.print(render(rows([], "node"), "node", "2026-03-01 to 2026-03-02 UTC"))

    assert "No energy was drawn, 2026-03-01 to 2026-03-02 UTC: nothing ran" in console.export_text()


def test_lines_have_every_figure_under_its_unit() -> None:
    """A table for spreadsheets: ISO times, names of fields with their units as a header."""
    file = StringIO()
    write_csv(ENTRIES, AccountEntry, file)
    lines = list(csv.DictReader(StringIO(file.getvalue())))

    assert lines[2]["hour"] == "2026-03-01T01:00:00Z"
    assert [line["model"] for line in lines] == ["", "chat", "chat", "digits"]
    assert [float(line["carbon_gco2e"]) for line in lines] == [5.0, 3.0, 7.0, 2.0]


def test_hours_have_what_each_emitted_and_sum_to_their_total() -> None:
    found = by_hour(ENTRIES, "model")

    assert [each["hour"][:13] for each in found] == [f"2026-03-01T0{hour}" for hour in (0, 1, 3)]
    assert found[0]["parts_gco2e"] == {"chat": 3.0, "(idle)": 4.0, "(other)": 1.0}
    for each in found:
        assert sum(each["parts_gco2e"].values()) == pytest.approx(each["carbon_gco2e"])
