"""Waiting work in the planner: what waits, what the fleet offers it, and when it is released.

Live and in virtual time alike. Under replay windows pass faster, as grid time does
(`carbon.replay.speedup`): work is due when its window has passed in grid time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from cinquefoil.planner.v1.records import (
    ReleaseCause,
    ReleasePeriod,
    WaitingBucket,
    WaitingModel,
    WaitingRelease,
    WaitingShortage,
)
from services.kit.grouping import grouped, summed
from services.kit.plurals import counted, moment
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.waiting_regions import offered, released
from services.planner.core.decide import Snapshot, staying
from services.planner.core.fleet import serves
from services.planner.core.forecast.text_lengths import TextLength
from services.planner.core.regions.offers import PeerHours
from services.planner.core.waiting.attained_room import LEARN_S, AttainedRoom
from services.planner.core.waiting.model import Choice, Due, Release, Shortage, Slot
from services.planner.core.waiting.outlook import HOUR_S, Offer, RoomMemory, slots_of
from services.planner.core.waiting.power import best_replica, room_of
from services.planner.core.waiting.release import plan_release

MAX_BUCKETS: Final = 64
MAX_REQUESTS: Final = 10**9
"""Most requests that are believed to wait for one model."""

_PUBLISHED_H: Final = 48
_MOST_HEAVIER: Final = 100.0
"""Largest ratio of a waiting request's size to the usual one that is believed."""

_UTILISATION: Final = 0.7

_HELD_S: Final = 60.0
"""Time for which waiting work is held at a time, s."""

_SHORT: Final = timedelta(hours=1)
"""Requests that are due within it, real time, wait for no cleaner hours."""

_TRICKLE_H: Final = 0.05
"""Part of an hour of grid time: work that fills the promised room for less, or for less than the
room is measured, waits unmeasured. Its last hour has 20 times the room."""


@dataclass(slots=True)
class WaitingWork:
    """Plans the waiting work of all models.

    Attributes:
        state: State of the cluster.
        shares: Returns the current share of its model's load, by segment id.
        reported: What waits, by model, as last reported.
        memory: What the fleet offered in each hour of the day, by model.
        releases: What was decided last, by model.
        held: Whether a power budget or a carbon budget lets none of it run.
        held_models: Models of which a carbon budget lets none run.
        places: Returns the coming hours of peer regions that a model's waiting work may run in.
    """

    state: ClusterState
    shares: Callable[[], Mapping[str, float]]
    reported: dict[str, WaitingModel] = field(default_factory=dict)
    memory: dict[str, RoomMemory] = field(default_factory=dict)
    releases: dict[str, WaitingRelease] = field(default_factory=dict)
    held: bool = False
    held_models: frozenset[str] = frozenset()
    places: Callable[[str], Iterable[PeerHours]] = field(default=lambda _: ())
    _offered: dict[str, float] = field(default_factory=dict)
    _attained: AttainedRoom = field(default_factory=AttainedRoom)

    @property
    def attained(self) -> dict[str, float]:
        """Part of the profiled room that answers have shown there to be, by model, 0..1."""
        return self._attained.parts

    # ---- reports -------------------------------------------------------------------------------

    def report(self, models: Iterable[WaitingModel], reporter: str = "", services: int = 1) -> None:
        """Record everything that waits at batch services, by model.

        Args:
            models: What waits.
            reporter: Name of the batch service.
            services: Batch services that send lines.
        """
        known = {model.name for model in self.state.deployed}
        self.reported = {each.model: each for each in models if each.model in known}
        for each in self.reported.values():
            self._learn(reporter, each, services)
        waiting = self.reported.keys() | self.state.singles.models
        self._attained.forget(waiting)

    def _learn_of_singles(self) -> None:
        """Learn from routers where no batch service reports."""
        reports = self.state.singles.reports()
        for router_id, each in reports:
            if each.model not in self.reported:
                self._learn(router_id, each, len({name for name, _ in reports}))

    @property
    def waiting(self) -> dict[str, WaitingModel]:
        """Everything that waits, by model: of batches, and single requests at routers."""
        singles = self.state.singles
        known = {model.name for model in self.state.deployed} & singles.models
        found = dict(self.reported)
        for name in known:
            before = self.reported.get(name, WaitingModel(model=name))
            found[name] = replace(before, buckets=(*before.buckets, *singles.buckets(name)))
        return found

    def _learn(self, reporter: str, each: WaitingModel, services: int) -> None:
        """Learn the part of the room that is attained, while all of it may be filled.

        More must wait than is in flight, or there was too little work to fill it. While an instance
        starts again the rest attain less than all do.
        """
        left = sum(bucket.requests for bucket in each.buckets)
        is_open = self._is_open(each.model) and left > each.in_flight
        self._attained.learn(
            (reporter, each.model),
            services * each.answered,
            self.state.clock.monotonic(),
            self._offered.get(each.model, 0.0),
            is_open=is_open and not self._restarts(each.model),
        )

    def _restarts(self, model: str) -> bool:
        """Return whether an instance of a model is to serve, and does not."""
        nodes = self.state.fleet.nodes(self.state.clock.monotonic())
        segments = (each for node in nodes for each in node.segments if each.spec.model == model)
        return any(not serves(each) for each in segments)

    def _measured(self, waiting: WaitingModel, release: WaitingRelease) -> WaitingRelease:
        """Return a release that fills the room for a moment where nothing is known of it yet.

        Profiles may promise more: a plan that rests on them may begin too late. A trickle waits
        unmeasured. The moment spans periods: under replay an hour may be shorter.
        """
        model, hour_s = waiting.model, HOUR_S / self.state.grid.speedup
        first = release.periods[0]
        if self._attained.known(model, hour_s) or first.fill or first.room_rps <= 0:
            return release
        least_s = min(LEARN_S, _TRICKLE_H * hour_s)
        if sum(each.requests for each in waiting.buckets) < first.room_rps * least_s:
            return release
        until = self.state.clock.now() + timedelta(seconds=LEARN_S)
        rate_rps, cause = first.room_rps, ReleaseCause.MEASURED
        opening = replace(first, until=until, fill=True, rate_rps=rate_rps, cause=cause, away=())
        rest = [
            replace(each, since=max(each.since, until))
            for each in release.periods
            if each.until > until
        ]
        return replace(release, periods=(opening, *rest))

    def _is_open(self, model: str) -> bool:
        """Return whether all that fits might run ever since the last decision."""
        release, now = self.releases.get(model), self.state.clock.now()
        periods = () if release is None else release.periods
        since = [each for each in periods if each.since < now] or periods[:1]
        return all(each.fill and not each.away for each in since) and bool(periods)

    # ---- decisions -----------------------------------------------------------------------------

    def update(self) -> tuple[WaitingRelease, ...]:
        """Decide again what is released; the replicas that it takes become part of the demand."""
        now = self.state.snapshot(self.shares())
        if now is None:
            return tuple(self.releases.values())  # by their periods
        offers = dict(self._offers(now))
        self._offered = {name: offer.room_rps for name, offer in offers.items()}
        for name, offer in offers.items():
            memory = self.memory.setdefault(name, RoomMemory())
            memory.observe(int(self.grid_now_s() // HOUR_S), offer)
        self._learn_of_singles()
        found: dict[str, WaitingRelease] = {}
        due_rps: dict[str, float] = {}
        for name, waiting in self.waiting.items():
            if name not in offers:
                continue
            release = self.planned(waiting, offers[name], now)
            found[name] = self._measured(waiting, self._record(waiting, release))
            if replicas := release.choices[0].replicas:
                due_rps[name] = replicas * offers[name].usable_rps
        held = {m.name for m in now.models if self.held or m.name in self.held_models}
        found |= {name: self._held(name) for name in held}
        due_rps = {name: rps for name, rps in due_rps.items() if name not in held}
        self.releases = found
        opened = [name for name, each in found.items() if each.periods[0].fill]
        self._attained.open(opened, self.state.clock.monotonic())
        if due_rps != self.state.due_rps:
            self.state.due_rps = due_rps
            self.state.changed.notify()
        return tuple(found.values())

    def _held(self, model: str) -> WaitingRelease:
        """Return a release of nothing: for a while, which the next decision prolongs."""
        now = self.state.clock.now()
        end = now + timedelta(seconds=_HELD_S)
        none = ReleasePeriod(since=now, until=end, cause=ReleaseCause.HELD)
        return WaitingRelease(model=model, periods=(none,))

    def what_if(self, now: Snapshot, within_s: float | None) -> tuple[WaitingRelease, ...]:
        """Return what would be released in other circumstances.

        Args:
            now: The cluster in these circumstances.
            within_s: Time until all that waits is due; None: as it is, s.
        """
        offers = dict(self._offers(now))
        return tuple(
            self._record(waiting, self.planned(waiting, offers[name], now, within_s))
            for name, waiting in self.waiting.items()
            if name in offers
        )

    def planned(
        self, waiting: WaitingModel, offer: Offer, now: Snapshot, within_s: float | None = None
    ) -> Release:
        """Return when a model's waiting work runs."""
        name = waiting.model
        zones = zone_weights(now, name)
        present = self.state.intensity_for_plans()
        first = {zone: present.get(zone) for zone in zones}
        outlook = self.state.grid

        def intensity(start_s: float, end_s: float) -> float | None:
            if start_s < end_s:
                return outlook.mean(zones, start_s, end_s)
            if any(value is None for value in first.values()):
                return None
            return sum(weight * (first[zone] or 0.0) for zone, weight in zones.items())

        grid_now_s = self.grid_now_s()
        memory = self.memory.get(name, RoomMemory())
        part = self.attained.get(name, 1.0)
        peers, hour_s = tuple(self.places(name)), HOUR_S / outlook.speedup
        slots = tuple(
            replace(
                slot,
                away=offered(peers, slot, hour_s),
                room_rps=part * slot.room_rps,
                woken_rps=part * slot.woken_rps,
                replica_rps=part * slot.replica_rps,
            )
            for slot in slots_of(offer, memory, intensity, grid_now_s, outlook.speedup)
        )
        due = list(self._due(waiting))
        if within_s is not None:
            due = [Due(min(within_s, each.due_s), each.requests) for each in due]
        return plan_release(due, slots)

    def _due(self, waiting: WaitingModel) -> Iterator[Due]:
        scale = partial(_scale, self.state.lengths.usual.get(waiting.model))
        for each, due_s, _ in self._buckets(waiting):
            yield Due(due_s, min(each.requests, MAX_REQUESTS) * scale(each))

    def _buckets(self, waiting: WaitingModel) -> Iterator[tuple[WaitingBucket, float, datetime]]:
        """Yield what waits, the time until its window has passed in grid time, s, and its end."""
        now, speedup = self.state.clock.now(), self.state.grid.speedup
        for each in waiting.buckets:
            if each.due is not None:
                skipped = (each.window or timedelta()) * (1 - 1 / speedup)
                yield each, (each.due - skipped - now).total_seconds(), each.due

    def grid_now_s(self) -> float:
        """Return grid time, s since the epoch."""
        state = self.state
        return state.grid.now_s(state.clock.monotonic(), state.clock.now().timestamp())

    def _offers(self, now: Snapshot) -> Iterator[tuple[str, Offer]]:
        """Yield what is offered to each model."""
        segments = grouped(
            (each.kind.model, each) for each in staying(now) if not each.kind.stage.index
        )
        used = {uuid for each in staying(now) for uuid in each.gpu_uuids}
        parked = [gpu for gpu in now.gpus if gpu.uuid not in used]
        load_rps = self.state.demand.arriving_rps()
        for model in (*now.models, *now.parked):
            its = segments.get(model.name, [])
            load = load_rps.get(model.name, 0.0)
            room_rps, room_j, _ = room_of(model, its, load)
            sizes = self.state.settings.batch_sizes
            best = partial(best_replica, model, batch_sizes=sizes, utilisation=_UTILISATION)
            if replica := best({gpu.pool for gpu in parked}):
                yield (
                    model.name,
                    Offer(
                        room_rps=room_rps,
                        room_j=room_j,
                        woken_rps=len(parked) * replica.rate_rps,
                        woken_j=replica.request_j,
                        replica_rps=replica.rate_rps,
                        usable_rps=replica.usable_rps,
                    ),
                )
            else:  # of its own it would be the same; none can be powered
                own = best({gpu.pool for gpu in now.gpus})
                yield model.name, Offer(room_rps, room_j, woken_j=own.request_j if own else 0.0)

    # ---- records -------------------------------------------------------------------------------

    def _fill_due(
        self, waiting: WaitingModel, choice: Choice, slot: Slot, now: datetime
    ) -> datetime | None:
        """Return the deadline, real time, up to which requests fill the room; None: all or none."""
        if math.isinf(choice.fill_due_s):
            return None
        buckets = self._buckets(waiting)
        ends = [end for _, due_s, end in buckets if due_s <= choice.fill_due_s]
        return max([*ends, _instant(now, slot.start_s) + _SHORT])

    def _record(self, waiting: WaitingModel, release: Release) -> WaitingRelease:
        now = self.state.clock.now()
        at = partial(_instant, now)
        speedup = self.state.grid.speedup
        periods = tuple(
            ReleasePeriod(
                since=at(slot.start_s),
                until=at(slot.end_s),
                fill=choice.fill,
                fill_due=self._fill_due(waiting, choice, slot, now),
                later_rps=choice.later_rps,
                rate_rps=choice.rate_rps,
                away=released(slot, choice),
                woken_rps=choice.woken_rps,
                cause=choice.cause,
                intensity_gco2e_per_kwh=slot.intensity_gco2e_per_kwh or 0.0,
                room_rps=slot.room_rps,
                marginal_j=slot.room_j,
            )
            for slot, choice in zip(release.slots, release.choices, strict=True)
            if slot.start_s * speedup < _PUBLISHED_H * HOUR_S
        )
        return WaitingRelease(
            model=waiting.model,
            periods=periods,
            shortages=tuple(
                WaitingShortage(
                    due=at(each.due_s),
                    late_requests=math.ceil(each.late),
                    possible_by=None if each.possible_s is None else at(each.possible_s),
                    replicas=each.replicas,
                    text=shortage_text(each, now),
                )
                for each in release.shortages
            ),
            done_by=None if release.done_s is None else at(release.done_s),
            planned_gco2e=release.planned_gco2e,
            at_once_gco2e=release.at_once_gco2e,
            own_pool_gco2e=release.own_pool_gco2e,
            home_gco2e=release.home_gco2e,
            woken_replicas=release.choices[0].replicas,
            own_pool_j=release.slots[0].woken_j,
        )


def shortage_text(each: Shortage, now: datetime) -> str:
    """Return what is late, and what would make it possible, as a sentence."""
    due = f"{moment(_instant(now, each.due_s), now)} UTC"
    late = f"{each.late:.0f} of {each.requests:.0f} requests due by {due} will be late"
    ways = []
    if each.possible_s is not None:
        by = _instant(now, each.possible_s)
        ways.append(f"a window until {moment(by, now)} UTC")
    if each.replicas:
        ways.append(f"{counted(each.replicas, 'replica')} more")
    fitting = max(each.requests - each.late, 0.0)
    ways.append(f"{fitting:.0f} requests" if fitting >= 1 else "fewer requests")
    return f"{late}; possible with {', '.join(ways[:-1])}{' or ' if ways[:-1] else ''}{ways[-1]}"


def _instant(now: datetime, after_s: float) -> datetime:
    return now + timedelta(seconds=min(after_s, 1e9))


def _scale(usual: TextLength | None, bucket: WaitingBucket) -> float:
    """Return the model's usual requests that one of a bucket stands for, by its tokens."""
    count = bucket.requests
    if usual is None or not count or not bucket.output_tokens:
        return 1.0
    mean = TextLength(bucket.prompt_tokens / count, bucket.output_tokens / count)
    ratio = mean.answer_tokens_worth / usual.answer_tokens_worth
    return min(max(ratio, 1 / _MOST_HEAVIER), _MOST_HEAVIER)


def zone_weights(now: Snapshot, model: str) -> dict[str, float]:
    """Return the share of a model's capacity by zone, times the PUE; of all GPUs, if parked."""
    its = [each for each in staying(now) if each.kind.model == model]
    total = summed((each.kind.pool.zone, each.kind.throughput_rps) for each in its)
    pue = {each.kind.pool.zone: each.kind.pool.pue for each in its}
    if not its:
        total = summed((gpu.pool.zone, 1.0) for gpu in now.gpus)
        pue = {gpu.pool.zone: gpu.pool.pue for gpu in now.gpus}
    whole = sum(total.values())
    return {zone: pue[zone] * part / whole for zone, part in total.items()}
