"""The planner's view of the nodes: their GPUs and segments, as reported by agents.

A node whose stream broke keeps its place for a while: its workers keep serving without their agent,
and an agent that restarts is back within seconds. Until then nothing is planned, because no step
could be carried out there.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from cinquefoil.condition.v1.records import Condition
from cinquefoil.gpuagent.v1.records import Placement, Segment, SegmentState
from cinquefoil.planner.v1.records import NodeOrder
from services.kit import config
from services.kit.config.sites import site_of
from services.kit.errors import FailedPrecondition
from services.kit.segment import gpus_of, plain, some_of
from services.planner.core.known_nodes import GpuPower, KnownNodes, NodeRoutes, together
from services.planner.core.model import Gpu, GpuType, Pool

MAX_OWNED_GPUS = 1024
"""GPUs that are one node's, present ones and replaced ones: a report of ever new ones ends."""

MAX_OWNED_SEGMENTS = 8192
"""Segments that are one node's, ended ones, too: twice as many as a report may have."""

_LOST_SHARE = 1 / 6
"""Share of a node's orphan timeout after which the planner plans without it."""

_MOST_WAITS = 3
"""Factor on that share while other nodes come back after a restart."""

_TOGETHER_S = 1.0
"""Time after the end of an agent within which another that is stopped was stopped with it."""

_PUE_STEP = 0.0625
"""Resolution of measured PUE in plans; accounts and receipts use the exact value."""


def serves(segment: Segment) -> bool:
    """Return whether requests may be sent to a segment."""
    answers = segment.state in (SegmentState.READY, SegmentState.DEGRADED)
    return answers and bool(segment.endpoints)


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU as its agent reports it.

    Attributes:
        uuid: UUID of the GPU.
        type: GPU type.
        slices: Slices that exist now.
        clock_mhz: SM clock that it is locked at, MHz; 0: not locked.
        wanted: Whether an operator has requested it: segments are to move to other GPUs.
    """

    uuid: str
    type: GpuType
    slices: tuple[Placement, ...]
    clock_mhz: int = 0
    wanted: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A node as its agent reports it.

    Attributes:
        name, zone: Names from the deployment file.
        gpus: GPUs of the node.
        segments: Segments that run now.
        pue: Wall energy per device energy, measured; None: not measured.
        conditions: Conditions found by its agent.
    """

    name: str
    zone: str
    gpus: tuple[NodeGpu, ...]
    segments: tuple[Segment, ...]
    pue: float | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(slots=True)
class _Member:
    node: Node | None
    left_s: float | None  # monotonic time its stream broke; None: connected
    lost: bool = False  # no router reaches it either: it is not waited for
    routed: NodeRoutes | None = None  # None: nothing serves there
    leaves_s: float | None = None  # monotonic time its agent announced its end; None: it stays


class Fleet:
    """Nodes of a deployment, as reported by their agents. Times are monotonic seconds.

    Attributes:
        settings: Nodes of the deployment, those that joined without it, and removed ones with
            running segments.
        sites: Sites of nodes, by name.
        eur_per_kwh: Price of electricity by zone; missing: not known.
        orders: Operators' orders about nodes, by name.
        avoided: Nodes that are not to be planned on for now.
        owners: The node of each GPU, by UUID: the first that reported it, until it is forgotten.
        owners_revision: Increases with every change of them.
        revision: Increases with every change of a node, its GPUs or its segments.
        routed_revision: Increases with those changes that affect routes.
        membership: Increases when a node joins, leaves or is lost.
        first_join_s: Time of the first report; infinite: none came yet.
    """

    def __init__(
        self,
        settings: Mapping[str, config.Node],
        settle_s: float,
        join: config.Join | None = None,
    ) -> None:
        self.settings = KnownNodes(settings, join)
        self.sites: Mapping[str, config.Site] = {}
        self.eur_per_kwh: Mapping[str, float] = {}
        self.orders: dict[str, NodeOrder] = {}
        self.avoided: frozenset[str] = frozenset()
        self.owners: dict[str, str] = {}
        self.owners_revision = 0
        self._removed: set[str] = set()
        self._settle_s = settle_s
        self._members: dict[str, _Member] = {}
        self._running: dict[str, Segment] = {}
        self._segments_of: dict[str, dict[str, None]] = {}  # by node: its latest, in that order
        self._node_of: dict[str, str] = {}  # of each of those segments
        self._offers: dict[str, tuple[tuple[object, ...], tuple[Gpu, ...]]] = {}
        self.revision = 0
        self.routed_revision = 0
        self._rerouted: dict[str, int] = {}  # by node: its routes are as of that revision
        self._all_rerouted = 0
        self.membership = 0
        self.first_join_s = math.inf
        self._returned_s = -math.inf  # the last node came back since a restart

    def configure(
        self, settings: Mapping[str, config.Node], join: config.Join | None = None
    ) -> None:
        """Apply changed nodes. A removed one leaves once nothing runs there any more."""
        gone = self.settings.configure(settings, join)
        self._removed = {name for name in self._removed if name not in settings} | gone
        for name in list(self._removed):
            self._let_go(name)
        for member in self._members.values():
            if member.node is not None:
                member.routed = self._routed(member.node)
        self._change()

    def configure_sites(self, sites: Mapping[str, config.Site]) -> None:
        """Apply changed sites."""
        if sites != self.sites:
            self.sites = sites
            self._offers.clear()
            self._change()

    def site(self, name: str) -> str:
        """Return the name of the site that a node is of; "": of none."""
        return site_of(self.sites, name) if self.sites else ""

    def order(self, name: str, order: NodeOrder | None) -> None:
        """Record an operator's order about a node; None: it may be used again."""
        if order is None:
            self.orders.pop(name, None)
        else:
            self.orders[name] = order
        self.revision += 1

    def forget(self, name: str) -> None:
        """Drop a node that joined, with its reports."""
        self._rerouted.pop(name, None)
        self.orders.pop(name, None)
        self._drop(name)

    def disown(self, name: str) -> bool:
        """Release the GPUs of a node for others; return whether it had any."""
        kept = {uuid: owner for uuid, owner in self.owners.items() if owner != name}
        if len(kept) == len(self.owners):
            return False
        self.owners = kept
        self.owners_revision += 1
        return True

    def _let_go(self, name: str) -> None:
        """Drop a removed node if nothing runs there; the next plan moves its segments."""
        node = self.node(name)
        if node is None or not node.segments:
            self._removed.discard(name)
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._forget(self.node(name))
        self.disown(name)
        for segment_id in self._segments_of.pop(name, ()):
            del self._node_of[segment_id]
        self._members.pop(name, None)
        self.settings.drop(name)
        self._change()

    def _change(self) -> None:
        """Record a change that may affect routes."""
        self.revision += 1
        self.routed_revision += 1
        self._all_rerouted = self.routed_revision

    def rerouted(self, since: int) -> list[str] | None:
        """Return the nodes whose routes changed after a `routed_revision`; None: any may have."""
        if since < self._all_rerouted:
            return None
        return [name for name, revision in self._rerouted.items() if revision > since]

    def routed(self, name: str) -> NodeRoutes | None:
        """Return a node's contribution to routes; None: nothing serves there."""
        member = self._members.get(name)
        return None if member is None else member.routed

    def expect(
        self,
        planned: Mapping[str, Iterable[str]],
        now_s: float,
        routed: Mapping[str, NodeRoutes] | None = None,
    ) -> None:
        """Expect nodes that plans from before a restart use, as if they had just left.

        Args:
            planned: Segments that the plans have there, by node: no other may claim them.
            now_s: Monotonic time, s.
            routed: Contribution of nodes to the routes from before the restart: a node that comes
                back unchanged changes no route.
        """
        for name in planned.keys() & self.settings.keys():
            self._members.setdefault(name, _Member(None, now_s, routed=(routed or {}).get(name)))
            self._own(name, planned[name])

    def report(self, node: Node, now_s: float) -> bool:
        """Record a node's report; return whether anything in it is new.

        Raises:
            FailedPrecondition: The node or its zone differs from the deployment file, or a GPU or
                segment belongs to another node.
        """
        known = self.settings.get(node.name)
        if known is None:
            names = some_of(self.settings)
            raise FailedPrecondition.at(
                "node.name", f"{plain(node.name)!r} is not in the deployment file; it has {names}"
            )
        if node.zone != known.zone:
            raise FailedPrecondition.at(
                "node.zone",
                f"the deployment file has {node.name} in {known.zone}, not in {plain(node.zone)!r}",
            )
        before = self._members.get(node.name)
        if before is not None and before.left_s is None and before.node == node:
            return False
        self._check_identities(node)
        if before is None or before.left_s is not None:
            self.membership += 1
        self._forget(self.node(node.name))
        if gained := {gpu.uuid: node.name for gpu in node.gpus if gpu.uuid not in self.owners}:
            self.owners |= gained
            self.owners_revision += 1
        if before is not None and before.node is None:
            self._returned_s = now_s
        routed = self._routed(node)
        leaves_s = now_s if _all_wanted(node) else None
        if leaves_s is not None and before is not None and before.left_s is None:
            leaves_s = now_s if before.leaves_s is None else before.leaves_s
        self._members[node.name] = _Member(node, None, routed=routed, leaves_s=leaves_s)
        self._running.update((run.spec.segment_id, run) for run in node.segments)
        self._own(node.name, (run.spec.segment_id for run in node.segments))
        self.revision += 1
        if routed != (None if before is None else before.routed):
            self.routed_revision += 1
            self._rerouted[node.name] = self.routed_revision
        if node.name in self._removed:
            self._let_go(node.name)
        self.first_join_s = min(self.first_join_s, now_s)
        return True

    def _forget(self, node: Node | None) -> None:
        """Remove a node's reported GPUs and segments; they stay its own."""
        if node is None:
            return
        self._offers.pop(node.name, None)
        for run in node.segments:
            self._running.pop(run.spec.segment_id, None)

    def _own(self, name: str, segment_ids: Iterable[str]) -> None:
        """Record that segments are of a node, also while its agent restarts and has none yet."""
        own = self._segments_of.setdefault(name, {})
        for segment_id in segment_ids:
            if self._node_of.setdefault(segment_id, name) == name:
                own.pop(segment_id, None)
                own[segment_id] = None
        while len(own) > MAX_OWNED_SEGMENTS:
            oldest = next(iter(own))
            del own[oldest], self._node_of[oldest]

    def _check_identities(self, node: Node) -> None:
        """Refuse GPUs and segments of another node, be it here or not, and GPUs without end."""
        gained = sum(gpu.uuid not in self.owners for gpu in node.gpus)
        if gained and gained + Counter(self.owners.values())[node.name] > MAX_OWNED_GPUS:
            raise FailedPrecondition.at(
                "node.gpus",
                f"node {node.name} has reported more than {MAX_OWNED_GPUS} different GPUs since it"
                f" was last forgotten; if they were replaced: cinquefoil nodes forget {node.name}",
            )
        for gpu in node.gpus:
            if (owner := self.owners.get(gpu.uuid, node.name)) != node.name:
                raise FailedPrecondition.at(
                    "node.gpus",
                    f"{gpu.uuid} is of node {owner}; if it has moved: cinquefoil nodes forget "
                    f"{owner}",
                )
        for run in node.segments:
            segment_id = run.spec.segment_id
            if (name := self._node_of.get(segment_id, node.name)) != node.name:
                raise FailedPrecondition.at("node", f"{segment_id} is of node {name}")

    def leave(self, name: str, now_s: float) -> None:
        """Record that a node's stream broke."""
        if name in self._members:
            self._members[name].left_s = now_s
            self.membership += 1
            self.revision += 1

    def unreachable(self, segment_ids: Collection[str]) -> list[str]:
        """Return the nodes, not yet lost, all of whose serving segments are among these."""
        return [
            name
            for name, member in self._members.items()
            if member.routed is not None
            and not member.lost
            and all(each in segment_ids for each in member.routed.endpoints)
        ]

    def serving(self) -> dict[str, Collection[str]]:
        """Return the segments that connected agents report as serving, by node."""
        return {
            name: member.routed.endpoints.keys()
            for name, member in self._members.items()
            if member.routed is not None and member.left_s is None
        }

    def lose(self, name: str, now_s: float) -> None:
        """Record that a node cannot be reached by anybody: plans are made without it at once."""
        member = self._members[name]
        member.lost = True
        if member.left_s is None:
            member.left_s = now_s
        self.membership += 1
        self.revision += 1

    def connected(self, name: str) -> bool:
        """Return whether a node's stream is open."""
        member = self._members.get(name)
        return member is not None and member.left_s is None

    def unsettled_s(self, now_s: float) -> float:
        """Return the time to wait until the fleet is worth planning for, s.

        0: none. Infinite: until a node joins.
        """
        return self._awaited_s(self._members, now_s)

    def takers_awaited_s(self, name: str, now_s: float) -> float:
        """Return the time for which a leaving node waits for one that could take over, s; 0: none.

        Agents that are restarted in turn come back. Those that end together, as when everything
        is stopped, are not waited for, nor are nodes that no plan may use.
        """
        return self._awaited_s(
            [
                each
                for each in self._members
                if each != name
                and each not in self.orders
                and each not in self._removed
                and self.settings[each].controlled
                and not self._ended_with(each, name)
            ],
            now_s,
        )

    def _ended_with(self, other: str, name: str) -> bool:
        """Return whether an agent that has ended did so together with one that ends now."""
        ended, ends = self._members[other], self._members.get(name)
        if ended.leaves_s is None or ended.left_s is None or ends is None:
            return False
        return ends.leaves_s is not None and ends.leaves_s < ended.left_s + _TOGETHER_S

    def _awaited_s(self, names: Iterable[str], now_s: float) -> float:
        """Return the time until each of these nodes is back or given up, s; see `unsettled_s`."""
        if math.isinf(self.first_join_s):
            return math.inf
        joined = self.settings.join is None and all(name in self._members for name in self.settings)
        waits = [0.0 if joined else self.first_join_s + self._settle_s - now_s]
        for name in names:
            member = self._members[name]
            if member.left_s is not None and not member.lost:
                waits.append(self._given_up_s(name, member.left_s) - now_s)
        return max(0.0, *waits)

    def nodes(self, now_s: float) -> Iterator[Node]:
        """Yield the nodes to plan with: connected, or disconnected only just now.

        A node whose agent may only read (`nodes.<n>.control`) is not among them: no step of a plan
        could be carried out there.
        """
        for name, member in sorted(self._members.items()):
            lost = member.lost or (
                member.left_s is not None and now_s >= member.left_s + self._lost_after_s(name)
            )
            if member.node is not None and self.settings[name].controlled and not lost:
                yield member.node

    def leaves(self, name: str) -> bool:
        """Return whether a node's agent ends once its segments were moved."""
        node = self.node(name)
        return node is not None and _all_wanted(node)

    def takes_over(self, name: str, now_s: float) -> bool:
        """Return whether another node has a GPU that may take over segments of this one."""
        return any(
            not gpu.wanted
            for node in self.nodes(now_s)
            if node.name != name and node.name not in self.orders and self.connected(node.name)
            for gpu in node.gpus
        )

    def node(self, name: str) -> Node | None:
        """Return a node as last reported, at any time; None: not since the start."""
        member = self._members.get(name)
        return None if member is None else member.node

    def pue(self, name: str) -> float:
        """Return a node's PUE: the last measured one, else that of the deployment file."""
        member = self._members.get(name)
        measured = None if member is None or member.node is None else member.node.pue
        return self.settings[name].pue if measured is None else measured

    def segments(self) -> Mapping[str, Segment]:
        """Return running segments by id, as last reported, including those of unreachable nodes."""
        return self._running

    def gpus(self, intensity: Mapping[str, float], now_s: float) -> tuple[Gpu, ...]:
        """Return the GPUs to plan with, in order of node and report.

        Args:
            intensity: gCO2e/kWh by zone; every zone of a node is a key.
            now_s: Monotonic time, s.
        """
        return tuple(self._gpus(intensity, now_s, wanted=False))

    def leaving(self, intensity: Mapping[str, float], now_s: float) -> tuple[Gpu, ...]:
        """Return the GPUs that operators want back, or out of use; arguments as for `gpus`."""
        return tuple(self._gpus(intensity, now_s, wanted=True))

    def cordoned(self) -> frozenset[str]:
        """Return the nodes that the next plan leaves out, whatever its cause.

        None of them waits for that plan, unlike an agent that wants its GPUs back.
        """
        return frozenset(
            name for name, order in self.orders.items() if not order.drain and not self._wants(name)
        )

    def _wants(self, name: str) -> bool:
        node = self.node(name)
        return node is not None and any(gpu.wanted for gpu in node.gpus)

    def _gpus(self, intensity: Mapping[str, float], now_s: float, *, wanted: bool) -> Iterator[Gpu]:
        for node in self.nodes(now_s):
            leaves = any(node.name in names for names in (self._removed, self.orders, self.avoided))
            for here, gpu in zip(node.gpus, self._offer(node, intensity[node.zone]), strict=True):
                if (here.wanted or leaves) == wanted:
                    yield gpu

    def _offer(self, node: Node, intensity_gco2e_per_kwh: float) -> tuple[Gpu, ...]:
        """Return all GPUs of a node; the same objects while nothing about them changes."""
        pue = self.settings[node.name].pue if node.pue is None else _coarse(node.pue)
        eur_per_kwh = self.eur_per_kwh.get(node.zone, 0.0)
        key, (known, offer) = (
            (node, pue, intensity_gco2e_per_kwh, eur_per_kwh),
            self._offers.get(node.name, ((), ())),
        )
        if known == key:
            return offer
        pool = partial(
            _pool,
            zone=node.zone,
            pue=pue,
            intensity_gco2e_per_kwh=intensity_gco2e_per_kwh,
            site=self.site(node.name),
            eur_per_kwh=eur_per_kwh,
        )
        offer = tuple(
            Gpu(gpu.uuid, node.name, pool(gpu.type), gpu.slices, gpu.clock_mhz) for gpu in node.gpus
        )
        self._offers[node.name] = key, offer
        return offer

    def _routed(self, node: Node) -> NodeRoutes | None:
        """Return a reported node's contribution to routes; None: nothing serves there."""
        serving = [run for run in node.segments if serves(run)]
        if not serving:
            return None
        powers = {
            gpu.uuid: GpuPower(gpu.type.context_power_w, gpu.type.metered_limit_w)
            for gpu in node.gpus
        }
        return NodeRoutes(
            {run.spec.segment_id: run.endpoints for run in serving},
            self.settings[node.name].pue if node.pue is None else node.pue,
            {
                run.spec.gpu_uuid: together(
                    powers.get(uuid, GpuPower()) for uuid in gpus_of(run.spec)
                )
                for run in serving
            },
        )

    def _given_up_s(self, name: str, left_s: float) -> float:
        """Return the time until which a node is waited for: longer while a fleet is coming back."""
        after_s = self._lost_after_s(name)
        if self.node(name) is not None:
            return left_s + after_s
        return min(max(left_s, self._returned_s) + after_s, left_s + _MOST_WAITS * after_s)

    def _lost_after_s(self, name: str) -> float:
        return self.settings[name].orphan_timeout_s * _LOST_SHARE


# One object per value: GPUs of a pool are compared quickly.
_pool = lru_cache(maxsize=2**12)(Pool)


def _all_wanted(node: Node) -> bool:
    return bool(node.gpus) and all(gpu.wanted for gpu in node.gpus)


def _coarse(pue: float) -> float:
    """Return a measured PUE rounded such that nodes with little difference share a pool."""
    return round(pue / _PUE_STEP) * _PUE_STEP
