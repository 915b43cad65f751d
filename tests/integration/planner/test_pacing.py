"""How often tables are published."""

from datetime import UTC, datetime

import pytest

from services.planner.control.pacing import Pacing
from tests.support.virtual_clock import VirtualClock

START = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_change_that_comes_alone_is_not_kept_waiting_by_the_one_before_it() -> None:
    """A table of a large fleet takes 0.1 s; one a second goes out at once, for ever."""
    clock = VirtualClock(START)
    pacing, pauses_s = Pacing(clock), []
    for _ in range(20):
        pauses_s.append(pacing.pause_s(0.1))
        await clock.advance(1.0)

    assert pauses_s == [0.0] * 20


@pytest.mark.parametrize(("spent_s", "share"), [(0.05, 0.2), (1.0, 2 / 3)])
async def test_changes_without_end_take_a_fifth_of_the_time_or_half_a_second_apart(
    spent_s: float, share: float
) -> None:
    """As when a whole fleet joins at once."""
    clock, busy_s = VirtualClock(START), 0.0
    pacing = Pacing(clock)
    while clock.monotonic() < 100.0:
        await clock.advance(spent_s)
        busy_s += spent_s
        await clock.advance(pacing.pause_s(spent_s))

    assert busy_s / clock.monotonic() == pytest.approx(share, abs=0.02)
