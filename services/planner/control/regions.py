"""The live exchange with peer regions: calls each of them, and sends routers what may leave."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.records import SitePower
from cinquefoil.regions.v1 import regions_pb2 as pb
from cinquefoil.regions.v1.records import OfferedHour
from cinquefoil.regions.v1.regions_pb2_grpc import RegionServiceStub
from services.kit.config import Deployment
from services.kit.errors import InvalidArgument, PermissionDenied
from services.kit.grouping import grouped
from services.kit.rpc import dial
from services.kit.rpc.access import Caller
from services.kit.telemetry import logs
from services.planner.adapters.region_wire import (
    grants_from,
    moved_from,
    request_to,
    response_to,
    wishes_from,
)
from services.planner.control.publisher import Publisher
from services.planner.core.accounting.entries import hour_of
from services.planner.core.accounting.moved import Moved, MovedKey
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.waiting_regions import ComingHours, away_rps, home_rps
from services.planner.core.cycle.waiting_work import WaitingWork, zone_weights
from services.planner.core.decide import Snapshot, staying
from services.planner.core.load_report import MOST_RPS
from services.planner.core.model import Model, Variant
from services.planner.core.problem.energy_range import Range, energy_range_j
from services.planner.core.regions.exchange import ModelFigures, RegionExchange
from services.planner.core.regions.grants import HEADROOM
from services.planner.core.regions.offers import (
    IntensityRecord,
    Limits,
    Offer,
    rate_within_power,
)
from services.planner.core.waiting.outlook import RoomMemory
from services.planner.core.waiting.power import room_of

if TYPE_CHECKING:
    from cinquefoil.regions.v1.regions_pb2_grpc import RegionServiceAsyncStub

_log = logs.get("regions")

_CALL_S: Final = 4.0
_LINK_S: Final = 15.0
"""Age from which a router's measurement of the network counts no more, s."""

_SMOOTHED_S: Final = 10.0
_MAX_ROUTERS: Final = 1024

K = TypeVar("K")


@dataclass(slots=True)
class _RouterView:
    """A router's last words. Attributes: rates by (region, model) of sent and received, req/s."""

    heard_s: float
    own_rps: dict[str, float] = field(default_factory=dict)
    sent_rps: dict[tuple[str, str], float] = field(default_factory=dict)
    waiting_rps: dict[tuple[str, str], float] = field(default_factory=dict)
    received_rps: dict[tuple[str, str], float] = field(default_factory=dict)
    round_trip_s: dict[str, float] = field(default_factory=dict)


class Regions:
    """Exchanges wishes and grants with the peers of a deployment.

    Args:
        deployment: Has `regions`.
        state: The cluster.
        publisher: Sends routers what they may forward.
        sites: Returns the power of every site.
        waiting: Waiting work: it runs in peer regions, too.
    """

    def __init__(
        self,
        deployment: Deployment,
        state: ClusterState,
        publisher: Publisher,
        sites: Callable[[], Iterable[SitePower]],
        waiting: WaitingWork,
    ) -> None:
        settings = deployment.regions
        if settings is None:
            raise ValueError("regions: not in the deployment")
        self._deployment, self._settings = deployment, settings
        self._state, self._publisher, self._sites = state, publisher, sites
        self._waiting = waiting
        self._routers: dict[str, _RouterView] = {}
        self._known: tuple[float, dict[str, ModelFigures]] = (-math.inf, {})
        self._ranges: dict[str, tuple[Sequence[Variant], frozenset[str], Range]] = {}
        self._intensities = IntensityRecord()
        self.faults: dict[str, str] = dict.fromkeys(settings.peers, "not called yet")
        self.draining_peers: set[str] = set()
        self.exchange = RegionExchange(
            settings.name,
            {
                name: Limits(
                    model.regions,
                    model.max_extra_latency_s,
                    settings.min_saving,
                    model.region_weights,
                )
                for name, model in deployment.models.items()
                if model.regions
            },
            self.figures,
            {name: peer.max_rps for name, peer in settings.peers.items() if peer.max_rps},
            waiting=lambda model: away_rps(waiting.releases.get(model), state.clock.now()),
        )
        waiting.places = lambda model: self.exchange.places(model, state.clock.monotonic())

    # ---- routers -------------------------------------------------------------------------------

    def report(
        self, report: planner_pb2.ReportLoadRequest, arrivals: Mapping[str, int]
    ) -> dict[MovedKey, Moved]:
        """Take what a router says of other regions; return the requests that it saw answered.

        Args:
            report: The report.
            arrivals: Its arrivals by model, as far as they are believed.
        """
        now_s = self._state.clock.monotonic()
        window_s = min(max(report.window.ToTimedelta().total_seconds(), 0.05), 60.0)
        if report.router_id not in self._routers and len(self._routers) >= _MAX_ROUTERS:
            return {}
        view = self._routers.setdefault(report.router_id, _RouterView(now_s))
        keep = math.exp(-window_s / _SMOOTHED_S)
        foreign = dict.fromkeys(arrivals, 0)
        sent: dict[tuple[str, str], float] = {}
        away: dict[tuple[str, str], float] = {}
        received: dict[tuple[str, str], float] = {}
        moved: dict[MovedKey, Moved] = {}
        hour = hour_of(self._state.clock.now())
        for load in report.region_loads[: len(self._settings.peers) * len(arrivals)]:
            if load.region in self._settings.peers and load.model in foreign:
                came = min(load.received, arrivals[load.model] - foreign[load.model])
                foreign[load.model] += came
                key = load.region, load.model
                received[key] = came / window_s
                waiting = min(load.sent_waiting, load.sent, int(MOST_RPS * window_s))
                away[key] = waiting / window_s
                sent[key] = min(load.sent - waiting, arrivals[load.model]) / window_s
                moved |= moved_from(load, hour, self._settings.name, window_s)
        own = {model: (count - foreign[model]) / window_s for model, count in arrivals.items()}
        view.own_rps = _smoothed(view.own_rps, own, keep)
        view.sent_rps = _smoothed(view.sent_rps, sent, keep)
        view.waiting_rps = _smoothed(view.waiting_rps, away, keep)
        view.received_rps = _smoothed(view.received_rps, received, keep)
        view.heard_s = now_s
        view.round_trip_s = {
            link.region: link.round_trip_s
            for link in report.region_links[: len(self._settings.peers)]
            if link.region in self._settings.peers and 0 <= link.round_trip_s < math.inf
        }
        return moved

    def _views(self) -> list[_RouterView]:
        since_s = self._state.clock.monotonic() - _LINK_S
        for name in [name for name, view in self._routers.items() if view.heard_s < since_s]:
            del self._routers[name]
        return list(self._routers.values())

    def _measure_links(self) -> None:
        """Take the longest round trip of the routers; one that cannot reach a region bars it."""
        views = self._views()
        self.exchange.round_trip_s = {
            peer: max(view.round_trip_s[peer] for view in views)
            for peer in self._settings.peers
            if views and all(peer in view.round_trip_s for view in views)
        }

    # ---- figures -------------------------------------------------------------------------------

    def figures(self) -> dict[str, ModelFigures]:
        """Return the models at home, as of the last second."""
        now_s = self._state.clock.monotonic()
        if now_s - self._known[0] >= 1.0:
            self._known = now_s, self._figures()
        return self._known[1]

    def _figures(self) -> dict[str, ModelFigures]:
        now = self._state.snapshot(self._publisher.shares)
        if now is None:
            return {}
        present = self._present()
        segments = grouped(
            (each.kind.model, each) for each in staying(now) if not each.kind.stage.index
        )
        power = {each.site: (each.limit_w, each.metered_w) for each in self._sites()}
        site_of = {gpu.uuid: self._state.fleet.site(gpu.node) for gpu in now.gpus}
        found = {}
        for model in now.models:
            own_rps = sum(view.own_rps.get(model.name, 0.0) for view in self._views())
            its = segments.get(model.name, [])
            capacity_rps, energy_j, _ = room_of(model, its, 0.0)
            weights = zone_weights(now, model.name)
            sites = {site_of[uuid] for each in its for uuid in each.gpu_uuids}
            if capacity_rps > 0 and all(present.get(zone) is not None for zone in weights):
                intensity = sum(weight * (present[zone] or 0.0) for zone, weight in weights.items())
                offer = Offer(self._settings.name, energy_j, intensity)
                guests_rps = rate_within_power(
                    [power.get(site, (None, 0.0)) for site in sites],
                    energy_j * sum(weights.values()),
                    _rate(self._views(), model.name),
                )
                waiting_rps = self._waiting_rps(model.name, 0.0)
                room_rps = min(capacity_rps * (1 - HEADROOM) - own_rps, guests_rps) - waiting_rps
                present_offer = OfferedHour(intensity, max(room_rps, 0.0), energy_j)
                found[model.name] = ModelFigures(
                    offer,
                    capacity_rps,
                    own_rps,
                    guests_rps,
                    self._range_j(model, now),
                    waiting_rps,
                    self._hours(model.name, weights, present_offer),
                )
        return found

    def _waiting_rps(self, model: str, after_s: float) -> float:
        """Return what runs here of a model's own waiting work, req/s, in so much grid time, s."""
        at = self._state.clock.now() + timedelta(seconds=after_s / self._state.grid.speedup)
        return home_rps(self._waiting.releases.get(model), at)

    def _hours(
        self, model: str, zones: Mapping[str, float], present: OfferedHour
    ) -> tuple[OfferedHour, ...]:
        coming = ComingHours(
            self._waiting.grid_now_s(),
            self._waiting.memory.get(model, RoomMemory()),
            self._waiting.attained.get(model, 1.0),
            partial(self._state.grid.mean, zones),
            partial(self._waiting_rps, model),
        )
        return coming.offers(present)

    def _range_j(self, model: Model, now: Snapshot) -> Range:
        """Return the least and most energy of a request on any hardware; it rarely changes."""
        types = {gpu.pool.type.name: gpu.pool for gpu in now.gpus}
        known = self._ranges.get(model.name)
        if known is None or known[0] is not model.variants or known[1] != types.keys():
            range_j = energy_range_j(model, types.values(), self._state.settings.batch_sizes)
            known = model.variants, frozenset(types), range_j or (0.0, math.inf)
            self._ranges[model.name] = known
        return known[2]

    def _present(self) -> dict[str, float | None]:
        """Return each zone's intensity to compare regions by; None: its news are too old."""
        signal, now_s = self._state.signal, self._state.clock.monotonic()
        ages_s, now_s = signal.staleness_s(now_s), now_s * signal.speedup
        return {
            zone: self._intensities.in_force(zone, intensity, ages_s.get(zone, 0.0), now_s)
            for zone, intensity in self._state.intensity_for_plans().items()
        }

    # ---- the exchange --------------------------------------------------------------------------

    async def keep(self) -> None:
        """Exchange with every peer, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._settings.peers:
                tasks.create_task(self._follow(name), name=f"planner.regions.{name}")

    async def _follow(self, peer: str) -> None:
        tls = self._deployment.identity("region", self._settings.name)
        address, expected = self._settings.peers[peer].planner, self._deployment.expected("planner")
        async with dial(address, tls, expected) as channel:
            stub: RegionServiceAsyncStub = RegionServiceStub(channel)
            while True:
                await self._exchange(peer, stub)
                self.publish()
                await asyncio.sleep(self._settings.exchange_s)

    async def _exchange(self, peer: str, stub: "RegionServiceAsyncStub") -> None:
        """Exchange with a peer once; one that does not answer gets nothing more."""
        self._measure_links()
        now_s = self._state.clock.monotonic()
        request = request_to(self._settings.name, self.exchange.wishes(peer, now_s))
        try:
            response = await stub.Exchange(request, timeout=_CALL_S)
            grants = grants_from(peer, response)
        except (grpc.aio.AioRpcError, InvalidArgument) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            if self.faults.get(peer) != why:
                _log.warning("a peer region cannot be reached", region=peer, why=why)
            self.faults[peer] = why or "no answer"
            self.exchange.lose(peer)
            return
        if self.faults.pop(peer, None) is not None:
            _log.info("a peer region answers", region=peer)
        (self.draining_peers.add if response.draining else self.draining_peers.discard)(peer)
        self.exchange.learn(peer, grants, now_s)

    def publish(self) -> None:
        """Send routers what each may forward: an equal part of every grant."""
        now_s, routers = self._state.clock.monotonic(), max(len(self._views()), 1)
        self._publisher.forward(
            tuple(
                replace(
                    each,
                    rate_rps=each.rate_rps / routers,
                    waiting_rps=each.waiting_rps / routers,
                )
                for each in self.exchange.forwards(now_s)
            )
        )

    def answer(self, request: pb.ExchangeRequest, who: Caller) -> pb.ExchangeResponse:
        """Answer a peer's exchange.

        Raises:
            PermissionDenied: The caller is another region, or no peer.
            InvalidArgument: A figure cannot be.
        """
        if request.region not in self._settings.peers:
            raise PermissionDenied(
                f"region {request.region!r:.80} is none of regions.peers", reason="NOT_A_PEER"
            )
        if who.roles is not None and who.node != request.region:
            raise PermissionDenied(
                f"{who.name} may not speak for region {request.region!r}", reason="NOT_AUTHORISED"
            )
        now_s = self._state.clock.monotonic()
        grants = self.exchange.answer(request.region, wishes_from(request), now_s)
        return response_to(self._settings.name, grants, draining=self.exchange.draining)

    # ---- operators -----------------------------------------------------------------------------

    def listed(self) -> pb.ListRegionsResponse:
        """Return this region and its peers, with what goes where."""
        now_s, views = self._state.clock.monotonic(), self._views()
        figures = self.figures()
        home = pb.Region(name=self._settings.name, reachable=True, draining=self.exchange.draining)
        for model, at_home in figures.items():
            home.flows.add(
                model=model,
                carbon_gco2e=at_home.offer.carbon_gco2e,
                granted_rps=at_home.capacity_rps,
                sent_rps=at_home.own_rps,
                received_rps=_rate(views, model),
                waiting_rps=at_home.waiting_rps,
            )
        return pb.ListRegionsResponse(
            regions=[home, *(self._peer(name, views, now_s) for name in self._settings.peers)]
        )

    def _peer(self, name: str, views: Iterable[_RouterView], now_s: float) -> pb.Region:
        trip_s = self.exchange.round_trip_s.get(name)
        reason = self.faults.get(name, "")
        if not reason and trip_s is None:
            reason = "no router of this region reaches its router"
        found = pb.Region(
            name=name,
            reachable=not reason,
            draining=name in self.draining_peers,
            round_trip_s=trip_s or 0.0,
            reason=reason,
        )
        for model in self.exchange.limits:
            offer = self.exchange.offers.get(model, {}).get(name)
            found.flows.add(
                model=model,
                carbon_gco2e=offer.carbon_gco2e if offer else 0.0,
                granted_rps=self.exchange.granted_rps(model, now_s).get(name, 0.0),
                sent_rps=sum(view.sent_rps.get((name, model), 0.0) for view in views),
                received_rps=sum(view.received_rps.get((name, model), 0.0) for view in views),
                waiting_rps=sum(view.waiting_rps.get((name, model), 0.0) for view in views),
                promised_rps=self.exchange.promised_rps(name, model, now_s),
            )
        return found


def _smoothed(before: Mapping[K, float], now: Mapping[K, float], keep: float) -> dict[K, float]:
    """Return rates that follow the present ones slowly; new ones at once."""
    keys = {**before, **now}
    return {
        key: keep * before.get(key, now.get(key, 0.0)) + (1 - keep) * now.get(key, 0.0)
        for key in keys
    }


def _rate(views: Iterable[_RouterView], model: str) -> float:
    return sum(
        rate for view in views for (_, name), rate in view.received_rps.items() if name == model
    )
