"""When waiting work runs, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC
from functools import partial
from itertools import groupby

from google.protobuf.timestamp_pb2 import Timestamp

from cinquefoil.planner.v1 import waiting_pb2 as pb
from services.kit.plurals import moment

_CAUSES = {
    pb.RELEASE_CAUSE_CLEAN: "clean hours",
    pb.RELEASE_CAUSE_DUE: "a deadline leaves no later time",
    pb.RELEASE_CAUSE_ROOM: "in room that interactive requests leave",
    pb.RELEASE_CAUSE_LATER: "waits: cleaner hours come before the deadline",
    pb.RELEASE_CAUSE_NO_ROOM: "waits: interactive requests leave no room",
    pb.RELEASE_CAUSE_NOTHING_WAITS: "nothing is left",
    pb.RELEASE_CAUSE_HELD: "waits: less power is required",
    pb.RELEASE_CAUSE_MEASURED: "for a moment, to measure the room",
}
_NOTHING_RPS = 1e-6
_MOST = 12
"""Stretches that are shown."""


def sentences(releases: Iterable[pb.WaitingRelease]) -> Iterator[str]:
    """Yield when each model's waiting work runs, what is late, and what waiting saves."""
    for release in releases:
        yield f"Waiting requests of {release.model}:"
        yield from (f"  {each}" for each in _of_model(release))


def _of_model(release: pb.WaitingRelease) -> Iterator[str]:
    at = partial(_time, release)
    alike = groupby(
        release.periods, key=lambda each: (each.cause, each.woken_rps > 0, bool(each.away))
    )
    stretches = [list(periods) for _, periods in alike]
    for periods in stretches[:_MOST]:
        span = f"{at(periods[0].since)} to {at(periods[-1].until)} UTC"
        rate_rps = sum(each.rate_rps for each in periods) / len(periods)
        grams = [each.intensity_gco2e_per_kwh for each in periods if each.intensity_gco2e_per_kwh]
        grid = f", {sum(grams) / len(grams):.0f} gCO2e/kWh" if grams else ""
        rate = f"{rate_rps:.3g} req/s, " if rate_rps > 0 else ""
        woken = ", in replicas powered for it" if periods[0].woken_rps > 0 else ""
        yield f"{span}: {rate}{_why(periods)}{woken}{grid}"
        yield from _away(periods, at)
    if len(stretches) > _MOST:
        yield f"... {len(stretches) - _MOST} stretches more"
    yield from (each.text for each in release.shortages)
    if release.HasField("done_by"):
        yield f"all of it is answered by {at(release.done_by)} UTC"
    if release.at_once_gco2e > 0:
        home = release.home_gco2e
        others = [f"{home:.3g} in this region alone"] if home > 0 else []
        others += [f"{release.at_once_gco2e:.3g} had it run at once"]
        if release.own_pool_gco2e > 0:
            others.append(f"{release.own_pool_gco2e:.3g} on replicas of its own")
        yield f"{release.planned_gco2e:.3g} gCO2e; {', '.join(others)}"


def _why(periods: Sequence[pb.ReleasePeriod]) -> str:
    """Return why as much runs as does."""
    why = _CAUSES.get(periods[0].cause, "")
    away_rps = sum(each.rate_rps for period in periods for each in period.away)
    if away_rps <= 0:
        return why
    at_home_rps = sum(each.rate_rps for each in periods) - away_rps
    return f"{why}, and in cleaner regions" if at_home_rps > _NOTHING_RPS else "in cleaner regions"


def _away(periods: Sequence[pb.ReleasePeriod], at: Callable[[Timestamp], str]) -> Iterator[str]:
    """Yield what runs in each peer region in some periods, and when that begins."""
    since: dict[str, Timestamp] = {}
    count: defaultdict[str, float] = defaultdict(float)
    grams: defaultdict[str, float] = defaultdict(float)
    for period in periods:
        length_s = (period.until.ToDatetime() - period.since.ToDatetime()).total_seconds()
        for each in period.away:
            since.setdefault(each.region, period.since)
            count[each.region] += each.rate_rps * length_s
            grams[each.region] += each.rate_rps * length_s * each.intensity_gco2e_per_kwh
    for region, requests in count.items():
        mean = grams[region] / requests if requests else 0.0
        yield (
            f"  of it {requests:,.0f} requests at {region} from {at(since[region])} UTC,"
            f" {mean:.0f} gCO2e/kWh"
        )


def _time(release: pb.WaitingRelease, stamp: Timestamp) -> str:
    now = release.periods[0].since.ToDatetime(tzinfo=UTC)
    return moment(stamp.ToDatetime(tzinfo=UTC), now, "%a")
