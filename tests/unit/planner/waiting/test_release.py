"""Release of waiting work: deadlines first, then room, then clean hours."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cinquefoil.planner.v1.records import ReleaseCause
from services.planner.core.waiting.model import Due, Slot
from services.planner.core.waiting.queue import Backlog
from services.planner.core.waiting.release import decide, plan_release
from tests.support.examples import examples

HOUR_S = 3600.0


def slots(
    intensities: Sequence[float | None],
    room_rps: float = 1.0,
    replicas: int = 0,
    *,
    held: tuple[int, ...] = (),
) -> list[Slot]:
    return [
        Slot(
            start_s=at * HOUR_S,
            length_s=HOUR_S,
            intensity_gco2e_per_kwh=value,
            room_rps=room_rps,
            room_j=10.0,
            woken_rps=2.0 * replicas,
            replica_rps=2.0 if replicas else 0.0,
            woken_j=25.0,
            held=at in held,
        )
        for at, value in enumerate(intensities)
    ]


DAY = [300.0, 300.0, 250.0, 100.0, 90.0, 95.0, 300.0, 310.0] * 3


def test_work_that_may_wait_runs_in_the_cleanest_hours_before_its_deadline() -> None:
    release = plan_release([Due(8 * HOUR_S, 3600.0)], slots(DAY))

    ran = [at for at, choice in enumerate(release.choices) if choice.rate_rps > 0]
    assert set(ran) <= {3, 4, 5}
    assert not release.shortages
    assert release.planned_gco2e < 0.5 * release.at_once_gco2e


def test_a_short_window_runs_at_once() -> None:
    choice = decide(Backlog([Due(HOUR_S, 1800.0)]), slots(DAY))

    assert choice.fill
    assert choice.cause is ReleaseCause.ROOM


def test_a_short_batch_beside_a_long_one_starts_at_once() -> None:
    """The long one waits for its clean hours, and the short one does not wait with it."""
    work = [Due(HOUR_S, 600.0), Due(4 * HOUR_S, 600.0), Due(24 * HOUR_S, 7200.0)]

    choice = decide(Backlog(work), slots(DAY))

    assert (choice.fill, choice.fill_due_s) == (False, HOUR_S)
    assert choice.room_rps == pytest.approx(600 / 3600)
    assert choice.later_rps == 0
    assert choice.cause is ReleaseCause.ROOM


def test_without_a_forecast_room_is_used_at_once() -> None:
    choice = decide(Backlog([Due(20 * HOUR_S, 1800.0)]), slots([300.0, *[None] * 23]))

    assert choice.fill
    assert choice.cause is ReleaseCause.ROOM


def test_a_replica_is_powered_for_a_deadline_only_and_is_filled_whole() -> None:
    due = [Due(2 * HOUR_S, 2.3 * HOUR_S), Due(24 * HOUR_S, 5 * HOUR_S)]

    choice = decide(Backlog(due), slots(DAY, replicas=3))
    relaxed = plan_release([Due(24 * HOUR_S, 10 * HOUR_S)], slots(DAY, replicas=3))

    # 2.3 h of work at 1/s, of which 0.9 x 3 x 3/s hold what is due later: none must wake for it.
    assert choice.replicas == 0
    assert all(each.replicas == 0 for each in relaxed.choices)
    pressed = decide(Backlog([Due(HOUR_S, 2.5 * HOUR_S), *due]), slots(DAY, replicas=3))
    assert pressed.replicas == 1
    assert pressed.woken_rps == pytest.approx(2.0)


def test_while_less_power_is_required_only_what_is_due_runs() -> None:
    waits = decide(Backlog([Due(10 * HOUR_S, 3600.0)]), slots([50.0, *DAY], held=(0,)))
    due = decide(Backlog([Due(HOUR_S, 1800.0)]), slots([50.0, *DAY], held=(0,)))

    assert (waits.rate_rps, waits.cause) == (0.0, ReleaseCause.HELD)
    assert due.rate_rps == pytest.approx(0.5)


def test_what_cannot_be_done_in_time_is_said_with_what_would_make_it_possible() -> None:
    release = plan_release([Due(2 * HOUR_S, 4 * HOUR_S)], slots(DAY))

    shortage = release.shortages[0]
    assert shortage.late == pytest.approx(2 * HOUR_S, rel=0.01)
    assert shortage.possible_s == pytest.approx(4 * HOUR_S, rel=0.01)
    assert shortage.requests == 4 * HOUR_S


def test_work_that_never_fits_has_no_time_at_which_it_is_possible() -> None:
    release = plan_release([Due(HOUR_S, 100 * HOUR_S)], slots(DAY))

    assert release.done_s is None
    assert release.shortages[0].possible_s is None


@examples(0.3)
@given(
    st.lists(st.floats(20.0, 900.0), min_size=24, max_size=48),
    st.lists(st.tuples(st.floats(1.0, 23.9), st.floats(0.0, 1.0)), min_size=1, max_size=6),
    st.integers(0, 2),
)
@example(intensities=[100.0] + [200.0] * 23, jobs=[(2.005, 1.0)], replicas=0)
def test_no_deadline_is_missed_while_due_work_fits_nine_tenths_of_the_room(
    intensities: list[float], jobs: list[tuple[float, float]], replicas: int
) -> None:
    """Wherever in an hour deadlines are, also a moment after it began."""
    offered = slots(list(intensities), replicas=replicas)
    work, used = [], 0.0
    for hours, share in sorted(jobs):
        free = 0.9 * offered[0].all_rps * hours * HOUR_S - used
        requests = max(share * free / len(jobs), 0.0)
        used += requests
        work.append(Due(hours * HOUR_S, requests))

    release = plan_release(work, offered)

    assert not release.shortages
    answered = sum(c.rate_rps * HOUR_S for c in release.choices)
    assert answered >= sum(each.requests for each in work) * (1 - 1e-6) - 1e-3
    assert all(math.isfinite(choice.rate_rps) for choice in release.choices)
