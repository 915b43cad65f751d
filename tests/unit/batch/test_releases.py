"""Lines are sent when the planner releases them, and by its last word while it is away."""

from datetime import UTC, datetime, timedelta

import pytest

from cinquefoil.batch.v1.records import Batch, BatchState
from cinquefoil.planner.v1.records import (
    ReleaseCause,
    ReleasePeriod,
    WaitingRelease,
    WaitingShortage,
)
from services.batch.core.backlog import MAX_BUCKETS, due_no_later, waiting_models
from services.batch.core.releases import PATIENCE_S, Releases, expected

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DUE = NOW + 24 * HOUR


def release(*rates: tuple[bool, float], **others: object) -> WaitingRelease:
    periods = tuple(
        ReleasePeriod(
            since=NOW + at * HOUR,
            until=NOW + (at + 1) * HOUR,
            fill=fill,
            rate_rps=rate,
            later_rps=rate,
            cause=ReleaseCause.CLEAN if rate else ReleaseCause.LATER,
        )
        for at, (fill, rate) in enumerate(rates)
    )
    return WaitingRelease(model="m", periods=periods, **others)  # type: ignore[arg-type]


def test_nothing_is_sent_before_the_hour_that_the_planner_chose() -> None:
    said = Releases()
    said.hear([release((False, 0.0), (True, 2.0))], 1)

    assert said.allowed("m", DUE, NOW, 0.0) == 0
    assert said.wait_s("m", NOW) == 3600.0
    assert said.allowed("m", DUE, NOW + HOUR, 3600.0) > 1000


def test_what_is_due_soon_fills_the_room_while_what_is_due_later_waits() -> None:
    """A batch of an hour does not wait for the clean hour of the day's batch beside it."""
    said = Releases()
    period = ReleasePeriod(NOW, NOW + HOUR, rate_rps=5.0, fill_due=NOW + HOUR, later_rps=0.0)
    said.hear([WaitingRelease(model="m", periods=(period,))], 1)

    assert said.allowed("m", NOW + HOUR, NOW, 0.0) > 1000
    assert said.allowed("m", DUE, NOW, 0.0) == 0
    short, long = (expected(said.by_model["m"], due, 9.0, NOW) for due in (NOW + HOUR, DUE))
    assert short.text.startswith("it runs")
    assert long.text.startswith("it waits")


def test_each_time_a_model_s_lines_begin_to_wait_the_planner_is_heard_first() -> None:
    """Not only the first time: when nothing waited any more its release was dropped."""
    said = Releases()
    assert said.allowed("m", DUE, NOW, 0.0) == 0
    assert said.allowed("m", DUE, NOW, PATIENCE_S) > 1000
    said.hear([release((False, 0.0))], 1)
    assert said.allowed("m", DUE, NOW, 100.0) == 0
    said.hear([], 1)

    assert said.allowed("m", DUE, NOW, 1000.0) == 0
    assert said.allowed("m", DUE, NOW, 1000.0 + PATIENCE_S) > 1000


def test_after_the_last_period_lines_are_sent_without_a_planner() -> None:
    said = Releases()
    said.hear([release((False, 0.0))], 1)

    assert said.allowed("m", DUE, NOW + 2 * HOUR, 7200.0) > 1000


def test_a_model_of_which_no_planner_says_anything_waits_for_a_moment_only() -> None:
    said = Releases()

    assert said.allowed("m", DUE, NOW, 100.0) == 0
    assert said.allowed("m", DUE, NOW, 100.0 + PATIENCE_S) > 1000


def test_a_rate_is_kept_and_shared_between_services() -> None:
    said = Releases()
    said.hear([release((False, 4.0))], 2)
    sent = 0
    for second in range(601):
        now = NOW + timedelta(seconds=second)
        lines = said.allowed("m", DUE, now, float(second))
        said.sent("m", DUE, lines, now, float(second))
        sent += lines

    assert sent == pytest.approx(1200, abs=4)


def test_a_batch_says_when_it_is_done_by_the_rates_before_it() -> None:
    found = expected(release((False, 0.0), (True, 2.0)), NOW + 9 * HOUR, 3600.0, NOW)

    assert found.done_by == NOW + 1.5 * HOUR
    assert found.late == 0
    assert "until 2026-07-01 13:00 UTC" in found.text


def test_a_batch_that_will_be_late_says_so_and_one_due_earlier_does_not() -> None:
    late = WaitingShortage(due=NOW + 4 * HOUR, late_requests=5, text="5 of 9 requests ...")
    said = release((True, 1.0), shortages=(late,))

    assert expected(said, NOW + 4 * HOUR, 9.0, NOW).text == late.text
    assert expected(said, NOW + 3 * HOUR, 4.0, NOW).late == 0


def test_what_waits_is_reported_by_deadline_in_a_bounded_number_of_buckets() -> None:
    batches = [
        Batch(
            id=f"b{at}",
            model="m",
            window=timedelta(hours=at + 1),
            state=BatchState.IN_PROGRESS,
            lines=10,
            completed=4,
            prompt_tokens=400,
            output_tokens=40,
            created_at=NOW,
        )
        for at in range(150)
    ]
    ended = Batch(id="e", model="m", state=BatchState.COMPLETED, lines=9, created_at=NOW)

    (found,) = waiting_models([*batches, ended], {"m": 3}, {"m": 7})

    assert (found.in_flight, found.answered) == (3, 7)
    assert len(found.buckets) <= MAX_BUCKETS
    assert sum(each.requests for each in found.buckets) == 900
    assert found.buckets[0].due == NOW + HOUR
    assert found.buckets[0].prompt_tokens == 100 * found.buckets[0].requests
    assert due_no_later(batches, batches[1]) == 12
