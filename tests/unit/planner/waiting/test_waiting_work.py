"""Waiting work in the planner: from reports, the fleet and the forecast to releases and demand."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cinquefoil.planner.v1 import waiting_pb2
from cinquefoil.planner.v1.records import ReleaseCause, WaitingBucket, WaitingModel
from cinquefoil.regions.v1.records import OfferedHour
from services.cli.console.releases import sentences
from services.kit.config import Objective
from services.kit.rpc.record_mapping import to_message
from services.planner.change_event import ChangeEvent
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.waiting_work import WaitingWork
from services.planner.core.decide import Snapshot, staying
from services.planner.core.fleet import Fleet
from services.planner.core.forecast.demand import Demand
from services.planner.core.forecast.forecast_periods import Step
from services.planner.core.problem.power_curve import curve_of
from services.planner.core.regions.offers import PeerHours
from services.planner.core.service_level import ServiceLevel
from services.planner.core.waiting.model import Away, Slot
from services.planner.core.waiting.outlook import Offer, RoomMemory
from services.planner.core.waiting.places import within
from services.planner.core.waiting.power import best_replica, room_of
from services.planner.core.waiting.singles import WaitingHere
from tests.support.planner.decisions import MODEL, POOL, decided, done, snapshot
from tests.support.virtual_clock import VirtualClock

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NIGHT_H = range(13, 19)


class VirtualTime(VirtualClock):
    """Noon, and some seconds later."""

    def __init__(self, after_s: float) -> None:
        super().__init__(NOON)
        self._elapsed_s = after_s


def running(gpus: int = 2) -> Snapshot:
    before = snapshot(gpus=gpus)
    return done(before, decided(before))


def work(now: Snapshot, requests: int, within_h: float) -> WaitingWork:
    """Some requests that wait at noon, before a night with a clean grid."""
    clock = VirtualClock(NOON)
    demand, level = Demand({}, now_s=clock.monotonic), ServiceLevel({})
    fleet = Fleet({}, 0.0)
    state = ClusterState(clock, ChangeEvent(), now.models, fleet, demand, level, Objective(), "x")
    state.intensity_gco2e_per_kwh = {"Z": 400.0}
    start_s = NOON.timestamp()
    state.grid.steps["Z"] = tuple(
        Step(start_s + 3600.0 * hour, 40.0 if hour in NIGHT_H else 400.0) for hour in range(49)
    )
    found = WaitingWork(state, dict)
    bucket = WaitingBucket(due=NOON + timedelta(hours=within_h), requests=requests)
    found.report([WaitingModel(model="digits", buckets=(bucket,)), WaitingModel(model="unknown")])
    return found


def test_ten_thousand_requests_of_noon_run_in_the_clean_night_within_24_hours() -> None:
    now = running()

    (release,) = work(now, 10_000, 24).what_if(now, None)

    ran = {period.since.hour for period in release.periods if period.rate_rps > 0}
    assert ran <= {(12 + hour) % 24 for hour in NIGHT_H}
    assert release.periods[0].cause is ReleaseCause.LATER
    assert not release.shortages
    assert release.done_by is not None
    assert release.done_by <= NOON + timedelta(hours=24)
    assert release.planned_gco2e == pytest.approx(0.1 * release.at_once_gco2e, rel=0.2)
    assert release.own_pool_gco2e > release.at_once_gco2e  # no GPU is parked: known all the same


def test_work_of_noon_runs_in_a_peer_region_that_is_cleaner_sooner() -> None:
    """North is clean from 14:00 to 16:00: all goes there then, and the explanation says so."""
    now, planned = running(), work(running(), 10_000, 24)
    hours = tuple(OfferedHour(4.0 if at in {2, 3} else 600.0, 2.0, 1.0) for at in range(48))
    planned.places = lambda _: [PeerHours("north", 0.0, 2.0, hours)]

    (release,) = planned.what_if(now, None)

    away = {period.since.hour: period.away for period in release.periods if period.away}
    assert list(away) == [14, 15]
    assert all(each.rate_rps <= 2.0 for (each,) in away.values())
    assert not release.periods[0].rate_rps
    assert release.planned_gco2e < 0.5 * release.home_gco2e
    said = "\n".join(sentences([to_message(release, waiting_pb2.WaitingRelease)]))
    assert "Mon 14:00 to Mon 16:00 UTC: 1.39 req/s, in cleaner regions, 480 gCO2e/kWh" in said
    assert "of it 10,000 requests at north from Mon 14:00 UTC, 4 gCO2e/kWh" in said
    assert "in this region alone" in said


def test_hours_that_a_peer_did_not_offer_do_not_count() -> None:
    """Two hours from half an hour ago on: an hour may be half of each; then none is known."""
    hours = (OfferedHour(100.0, 2.0, 1.0), OfferedHour(300.0, 4.0, 3.0))
    peer = PeerHours("north", -1800.0, 1.5, hours, weight=2.0)

    assert within(peer, Slot(0.0, 1800.0, None, 0.0), 3600.0) == Away("north", 1.5, 100.0, 1.0, 2.0)
    assert within(peer, Slot(900.0, 1800.0, None, 0.0), 3600.0) == Away("north", 3, 200.0, 2.0, 2.0)
    assert within(peer, Slot(5400.0, 3600.0, None, 0.0), 3600.0) is None


def test_what_if_it_were_due_within_an_hour_it_runs_now() -> None:
    now = running()

    (release,) = work(now, 10_000, 24).what_if(now, 3600.0)

    assert release.periods[0].rate_rps > 0
    assert release.periods[0].cause is ReleaseCause.ROOM


def test_single_requests_of_routers_wait_for_clean_hours_with_those_of_batches() -> None:
    """Flex requests count until their router leaves; implausible deadlines never do."""
    now, planned = running(), work(running(), 10_000, 24)
    here = WaitingHere([(23 * 3600.0, 500), (math.nan, 7)]).bounded()
    planned.state.singles.observe("r1", {"digits": here}, NOON)

    buckets = planned.waiting["digits"].buckets

    assert [each.requests for each in buckets] == [10_000, 500]
    planned.report([])
    (release,) = planned.what_if(now, None)
    assert release.periods[0].cause is ReleaseCause.LATER
    assert release.done_by is not None
    assert release.done_by <= NOON + timedelta(hours=23)
    planned.state.singles.forget("r1")
    assert planned.what_if(now, None) == ()


def test_periods_cover_48_hours_without_gaps() -> None:
    now = running()

    (release,) = work(now, 100, 24).what_if(now, None)

    assert release.periods[0].since == NOON
    assert release.periods[-1].until == NOON + timedelta(hours=48)
    pairs = zip(release.periods, release.periods[1:], strict=False)
    assert all(first.until == second.since for first, second in pairs)


def test_more_than_the_fleet_can_do_is_late_with_what_would_make_it_possible() -> None:
    now = running()

    (release,) = work(now, 500_000_000, 4).what_if(now, None)

    assert release.shortages[0].late_requests > 0
    assert "will be late; possible with" in release.shortages[0].text


def test_without_any_forecast_room_is_used_at_once() -> None:
    now = running()
    found = work(now, 10_000, 24)
    found.state.grid.steps.clear()

    (release,) = found.what_if(now, None)

    assert release.periods[0].cause is ReleaseCause.ROOM
    assert release.periods[0].fill


def test_a_model_that_nothing_runs_of_gets_a_replica_for_its_deadline_only() -> None:
    now, served = replace(snapshot(), parked=(MODEL,), models=()), snapshot()
    far, near = work(served, 1000, 24), work(served, 1000, 1)

    (waits,), (runs,) = far.what_if(now, None), near.what_if(now, None)

    assert waits.woken_replicas == 0
    assert runs.woken_replicas == 1


def test_room_is_cheaper_than_a_replica_of_its_own_and_shrinks_with_the_load() -> None:
    segments = [each for each in staying(running()) if not each.kind.stage.index]

    room_rps, room_j, full_rps = room_of(MODEL, segments, 0.0)
    less_rps, _, _ = room_of(MODEL, segments, full_rps / 2)
    replica = best_replica(MODEL, [POOL], (1, 4, 16), 0.7)

    assert less_rps == pytest.approx(room_rps / 2, rel=0.01)
    assert replica is not None
    assert 0 < room_j < replica.request_j
    curve = curve_of(MODEL, segments[0].kind)
    assert curve.most_rps == pytest.approx(segments[0].kind.throughput_rps, rel=1e-6)


def test_an_hours_room_is_that_of_the_same_hour_a_day_before() -> None:
    memory = RoomMemory()
    memory.observe(100, Offer(5.0, 1.0))
    memory.observe(100, Offer(15.0, 1.0))

    later = memory.at(124)
    assert later is not None
    assert 5.0 < later.room_rps < 15.0
    assert memory.at(101) is None


def test_a_trickle_says_nothing_about_the_room_and_waits_for_clean_hours() -> None:
    """All that waits is in flight: more could have run; so little needs no room to be measured."""
    now = running()
    found = work(now, 5, 24)
    release = found._measured(found.waiting["digits"], *found.what_if(now, None))
    assert (release.periods[0].cause, release.periods[0].fill) == (ReleaseCause.LATER, False)

    opened = replace(release.periods[0], fill=True)
    found.releases = {"digits": replace(release, periods=(opened, *release.periods[1:]))}
    (bucket,) = found.reported["digits"].buckets
    for answered in range(0, 100, 5):
        model = WaitingModel(model="digits", buckets=(bucket,), answered=answered, in_flight=5)
        found.state.clock = VirtualTime(float(answered))
        found.report([model], "b-1")

    assert found.attained == {}


def test_room_that_answers_do_not_attain_is_planned_with_less() -> None:
    """Profiles may promise a room that hosts cannot feed: deadlines must not rest on it."""
    now = running()
    found = work(now, 2_000_000, 2)
    (before,) = found.what_if(now, None)
    found.releases = {"digits": before}
    found._offered = {"digits": before.periods[0].room_rps}
    (bucket,) = found.reported["digits"].buckets
    for answered in range(0, 1000, 50):  # 10 req/s, wherever the room is hundreds
        model = WaitingModel(model="digits", buckets=(bucket,), answered=answered)
        found.state.clock = VirtualTime(answered / 10)
        found.report([model], "b-1")
    found.state.clock = VirtualClock(NOON)

    (after,) = found.what_if(now, None)

    assert before.periods[0].fill
    assert found.attained["digits"] < 0.5
    assert after.periods[0].room_rps < 0.5 * before.periods[0].room_rps
    assert (before.woken_replicas, after.woken_replicas) == (0, 1)
