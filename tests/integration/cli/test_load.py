"""A load's arrivals follow its profile, and its books lose no request."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.load.books import Books
from services.cli.load.open_loop import send_each
from services.cli.load.profile import NAMED, due_times_s
from services.kit.errors import InvalidArgument
from tests.support.virtual_clock import VirtualClock


@pytest.mark.parametrize("profile", NAMED)
def test_a_profile_has_its_mean_rate_in_order_and_is_repeatable(profile: str) -> None:
    """Ten thousand arrivals lie within the duration, and equal seeds give equal ones."""
    times_s = due_times_s(profile, 20.0, 500.0, seed=3)
    assert np.all(np.diff(times_s) >= 0)
    assert 0 <= times_s[0] <= times_s[-1] < 500
    assert len(times_s) == pytest.approx(10_000, rel=0.15)
    assert np.array_equal(times_s, due_times_s(profile, 20.0, 500.0, seed=3))


def test_a_day_has_its_peak_in_the_afternoon_and_bursts_have_more_spread() -> None:
    """Counts per tenth: a day's swing is that of a sine, bursts vary more than Poisson."""
    day, bursts, flat = (
        np.histogram(due_times_s(profile, 50.0, 600.0, seed=1), 600, (0, 600))[0]
        for profile in ("day", "bursts", "constant")
    )
    hours = day.reshape(24, 25).sum(axis=1)
    assert 13 <= int(np.argmax(hours)) <= 17
    assert hours.max() > 3 * hours.min()
    assert np.var(bursts) > 4 * np.var(flat)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "constant, day, bursts"), ("a,b\n1,2\n", "rps"), ("rps\n0\n0\n", "mean of 0")],
)
def test_a_profile_that_is_none_is_refused_with_those_there_are(
    tmp_path: Path, text: str | None, words: str
) -> None:
    """The message names the option and what it takes."""
    path = tmp_path / "load.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidArgument, match=f"--profile: .*{words}"):
        due_times_s(str(path), 10.0, 10.0, seed=0)


def test_a_file_of_rates_keeps_its_form_at_the_mean_that_is_wanted(tmp_path: Path) -> None:
    """A quarter of the time has three fifths of the load, at 10 requests/s on average."""
    path = tmp_path / "load.csv"
    path.write_text("hour,rps\n0,600\n6,200\n12,100\n18,100\n")
    times_s = due_times_s(str(path), 10.0, 1000.0, seed=0)
    assert len(times_s) == pytest.approx(10_000, rel=0.05)
    assert np.mean(times_s < 250) == pytest.approx(0.6, abs=0.02)


def test_a_file_of_arrivals_is_sent_as_it_is(tmp_path: Path) -> None:
    """Times beyond the duration are left out."""
    path = tmp_path / "arrivals.csv"
    path.write_text("arrival_s\n0.5\n2\n9\n30\n")
    assert due_times_s(str(path), 1.0, 10.0, seed=0).tolist() == [0.5, 2.0, 9.0]


@given(st.lists(st.sampled_from(["answered", "late", "a reason", "another"]), max_size=40))
def test_sent_is_answered_and_lost_and_open(ends: list[str]) -> None:
    """After any sequence of ends the books balance, and count each kind."""
    books = Books(objective_s=0.2)
    for number, end in enumerate(ends):
        books.sent += 1
        if end in {"answered", "late"}:
            latency_s = 0.1 if end == "answered" else 0.3
            books.answer(latency_s, {"energy_j": 2.0, "model_variant": "small"})
        elif number % 2:
            books.lose(end)
    counts = Counter(ends)
    assert books.sent == books.answered + books.lost + books.open
    assert books.answered == counts["answered"] + counts["late"]
    assert books.in_time == counts["answered"]
    assert books.energy_j == 2.0 * books.answered
    assert books.document()["sent"] == len(ends)


async def test_a_slow_answer_delays_no_later_request() -> None:
    """Each is started when it is due, and the call returns with the last end."""
    clock, started = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)), dict[int, float]()

    async def send(number: int, _: float) -> None:
        started[number] = clock.monotonic()
        await clock.sleep(0.0 if number else 100.0)

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(send_each([0.0, 1.0, 2.0], send, clock))
        for _ in range(5):  # the first is due at once
            await asyncio.sleep(0)
        for _ in range(99):
            await clock.advance(1.0)
        assert started == {0: 0.0, 1: 1.0, 2: 2.0}
        assert not running.done()
        await clock.advance(2.0)
