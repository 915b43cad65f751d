"""Which nodes there are, what they have and what runs on them: the planner's view of the agents.

A node whose stream broke keeps its place for a while: its workers serve on without their agent,
and an agent that restarts is back within seconds. Until then nothing is planned, because nothing
could be carried out there.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from cinquefoil.condition.v1.records import Condition
from cinquefoil.gpuagent.v1.records import Placement, Segment, SegmentState
from cinquefoil.planner.v1.records import NodeOrder
from services.kit import config
from services.kit.errors import FailedPrecondition
from services.kit.segment import plain, some_of
from services.planner.core.model import Gpu, GpuType, Pool
from services.planner.core.roster import NodeRoutes, Roster

_LOST_SHARE = 1 / 6
"""Share of a node's orphan timeout after which the planner plans without it."""

_MOST_WAITS = 3
"""How many times that long nodes are waited for while others come back after a restart."""

_PUE_STEP = 0.0625
"""Plans see measured PUE in such steps; accounts and receipts see it as it is."""


def serves(segment: Segment) -> bool:
    """Return whether requests may be sent to a segment."""
    answers = segment.state in (SegmentState.READY, SegmentState.DEGRADED)
    return answers and bool(segment.endpoints)


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU as its agent reports it.

    Attributes:
        uuid: Its identity.
        type: What it is.
        slices: Those that exist now.
        clock_mhz: What its SM clock is held at, MHz; 0: not held.
        wanted: An operator has requested it: segments are to move to other GPUs.
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
        name, zone: Of the deployment file.
        gpus: What it has.
        segments: What runs now.
        pue: Wall energy per device energy, measured; None: not measured.
        conditions: What its agent found wrong.
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
    routed: NodeRoutes | None = None  # None: nothing serves there


class Fleet:
    """The nodes of a deployment, by the agents' reports. Times are monotonic seconds.

    Attributes:
        settings: The deployment's nodes, those that joined without it, and those that were removed
            while something ran there.
        orders: What operators ordered of nodes, by name.
        revision: Increases with every change of what nodes are, have and run.
        routed_revision: Increases with those changes that routes are made of.
    """

    def __init__(
        self,
        settings: Mapping[str, config.Node],
        settle_s: float,
        join: config.Join | None = None,
    ) -> None:
        self.settings = Roster(settings, join)
        self.orders: dict[str, NodeOrder] = {}
        self._removed: set[str] = set()
        self._settle_s = settle_s
        self._members: dict[str, _Member] = {}
        self._running: dict[str, Segment] = {}
        self._nodes_of: dict[str, str] = {}  # by GPU UUID and segment id: who reported it last
        self._offers: dict[str, tuple[tuple[object, ...], tuple[Gpu, ...]]] = {}
        self.revision = 0
        self.routed_revision = 0
        self._rerouted: dict[str, int] = {}  # by node: its routes are as of that revision
        self._all_rerouted = 0
        self._first_join_s: float | None = None
        self._returned_s = -math.inf  # the last node came back since a restart

    def configure(
        self, settings: Mapping[str, config.Node], join: config.Join | None = None
    ) -> None:
        """Take over changed nodes. One that is removed leaves when nothing runs there any more."""
        gone = self.settings.configure(settings, join)
        self._removed = {name for name in self._removed if name not in settings} | gone
        for name in list(self._removed):
            self._let_go(name)
        for member in self._members.values():
            if member.node is not None:
                member.routed = self._routed(member.node)
        self._change()

    def order(self, name: str, order: NodeOrder | None) -> None:
        """Take in what an operator ordered of a node; None: it may be used again."""
        if order is None:
            self.orders.pop(name, None)
        else:
            self.orders[name] = order
        self.revision += 1

    def forget(self, name: str) -> None:
        """Drop a node that joined, whatever it has reported."""
        self._rerouted.pop(name, None)
        self.orders.pop(name, None)
        self._drop(name)

    def _let_go(self, name: str) -> None:
        """Drop a removed node if nothing runs there; what runs is moved by the next plan."""
        node = self.node(name)
        if node is None or not node.segments:
            self._removed.discard(name)
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._forget(self.node(name))
        self._members.pop(name, None)
        self.settings.drop(name)
        self._change()

    def _change(self) -> None:
        """Note a change that routes may depend on."""
        self.revision += 1
        self.routed_revision += 1
        self._all_rerouted = self.routed_revision

    def rerouted(self, since: int) -> list[str] | None:
        """Return the nodes whose routes changed after a `routed_revision`; None: any may have."""
        if since < self._all_rerouted:
            return None
        return [name for name, revision in self._rerouted.items() if revision > since]

    def routed(self, name: str) -> NodeRoutes | None:
        """Return what routes are made of, of a node; None: nothing serves there."""
        member = self._members.get(name)
        return None if member is None else member.routed

    def expect(
        self, nodes: frozenset[str], now_s: float, routed: Mapping[str, NodeRoutes] | None = None
    ) -> None:
        """Expect nodes that a plan from before a restart uses, as if they had just left.

        Args:
            nodes: Their names.
            now_s: Monotonic time, s.
            routed: What the routes of before the restart have of nodes: one that comes back with
                just that changes no route.
        """
        for name in nodes & self.settings.keys():
            self._members.setdefault(name, _Member(None, now_s, (routed or {}).get(name)))

    def report(self, node: Node, now_s: float) -> bool:
        """Take in a node as it is now; return whether anything is new in it.

        Raises:
            FailedPrecondition: The node or its zone is not the deployment file's, or a GPU or
                segment is another node's.
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
        self._forget(self.node(node.name))
        if before is not None and before.node is None:
            self._returned_s = now_s
        routed = self._routed(node)
        self._members[node.name] = _Member(node, None, routed)
        self._running.update((run.spec.segment_id, run) for run in node.segments)
        self._nodes_of.update(dict.fromkeys(_identities(node), node.name))
        self.revision += 1
        if routed != (None if before is None else before.routed):
            self.routed_revision += 1
            self._rerouted[node.name] = self.routed_revision
        if node.name in self._removed:
            self._let_go(node.name)
        if self._first_join_s is None:
            self._first_join_s = now_s
        return True

    def _forget(self, node: Node | None) -> None:
        """Take back what a node has reported."""
        if node is None:
            return
        self._offers.pop(node.name, None)
        for identity in _identities(node):
            if self._nodes_of.get(identity) == node.name:
                del self._nodes_of[identity]
                self._running.pop(identity, None)

    def _check_identities(self, node: Node) -> None:
        """Refuse a segment that is another node's, and a GPU that another connected one has."""
        segments = {run.spec.segment_id for run in node.segments}
        for identity in _identities(node):
            name = self._nodes_of.get(identity, node.name)
            if name != node.name and (identity in segments or self.connected(name)):
                raise FailedPrecondition.at("node", f"{identity} is of node {name}")

    def leave(self, name: str, now_s: float) -> None:
        """A node's stream broke."""
        if name in self._members:
            self._members[name].left_s = now_s
            self.revision += 1

    def connected(self, name: str) -> bool:
        """Return whether a node's stream is open."""
        member = self._members.get(name)
        return member is not None and member.left_s is None

    def unsettled_s(self, now_s: float, *, leavers: bool = True) -> float:
        """Return how long to wait before the fleet is worth planning for, s.

        0: now. Infinite: until a node joins.

        Args:
            now_s: Monotonic time, s.
            leavers: Wait also for nodes that said that they leave: their agents may start again.
        """
        if self._first_join_s is None:
            return math.inf
        joined = self.settings.join is None and all(name in self._members for name in self.settings)
        waits = [0.0 if joined else self._first_join_s + self._settle_s - now_s]
        for name, member in self._members.items():
            if member.left_s is not None and (leavers or not self.leaves(name)):
                waits.append(self._given_up_s(name, member.left_s) - now_s)
        return max(0.0, *waits)

    def nodes(self, now_s: float) -> Iterator[Node]:
        """Yield the nodes to plan with: those that are here, or have only just left.

        A node whose agent may only read (`nodes.<n>.control`) is none of them: no step of a plan
        could be carried out there.
        """
        for name, member in sorted(self._members.items()):
            lost = member.left_s is not None and now_s >= member.left_s + self._lost_after_s(name)
            if member.node is not None and self.settings[name].controlled and not lost:
                yield member.node

    def leaves(self, name: str) -> bool:
        """Return whether a node's agent ends as soon as what runs there was moved."""
        node = self.node(name)
        return node is not None and bool(node.gpus) and all(gpu.wanted for gpu in node.gpus)

    def takes_over(self, name: str, now_s: float) -> bool:
        """Return whether another node has a GPU that may take over what runs on this one."""
        return any(
            not gpu.wanted
            for node in self.nodes(now_s)
            if node.name != name and node.name not in self.orders and self.connected(node.name)
            for gpu in node.gpus
        )

    def node(self, name: str) -> Node | None:
        """Return a node as last reported, however long ago; None: not since the start."""
        member = self._members.get(name)
        return None if member is None else member.node

    def pue(self, name: str) -> float:
        """Return a node's PUE: as last measured, else as the deployment file says."""
        member = self._members.get(name)
        measured = None if member is None or member.node is None else member.node.pue
        return self.settings[name].pue if measured is None else measured

    def segments(self) -> Mapping[str, Segment]:
        """Return what runs, by segment id, as last reported, by nodes out of reach too."""
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
        """Return the nodes that the next plan leaves out, whatever causes it.

        None of them waits for that plan: an agent that wants its GPUs back does.
        """
        return frozenset(
            name for name, order in self.orders.items() if not order.drain and not self._wants(name)
        )

    def _wants(self, name: str) -> bool:
        node = self.node(name)
        return node is not None and any(gpu.wanted for gpu in node.gpus)

    def _gpus(self, intensity: Mapping[str, float], now_s: float, *, wanted: bool) -> Iterator[Gpu]:
        for node in self.nodes(now_s):
            leaves = node.name in self._removed or node.name in self.orders
            for here, gpu in zip(node.gpus, self._offer(node, intensity[node.zone]), strict=True):
                if (here.wanted or leaves) == wanted:
                    yield gpu

    def _offer(self, node: Node, intensity_gco2e_per_kwh: float) -> tuple[Gpu, ...]:
        """Return all GPUs of a node; the same ones while nothing about them changes."""
        pue = self.settings[node.name].pue if node.pue is None else _coarse(node.pue)
        key, (known, offer) = (
            (node, pue, intensity_gco2e_per_kwh),
            self._offers.get(node.name, ((), ())),
        )
        if known == key:
            return offer
        pool = partial(
            _pool, zone=node.zone, pue=pue, intensity_gco2e_per_kwh=intensity_gco2e_per_kwh
        )
        offer = tuple(
            Gpu(gpu.uuid, node.name, pool(gpu.type), gpu.slices, gpu.clock_mhz) for gpu in node.gpus
        )
        self._offers[node.name] = key, offer
        return offer

    def _routed(self, node: Node) -> NodeRoutes | None:
        """Return what routes are made of, as a node reports it; None: nothing serves there."""
        serving = [run for run in node.segments if serves(run)]
        if not serving:
            return None
        idle_power_w = {gpu.uuid: gpu.type.context_power_w for gpu in node.gpus}
        return NodeRoutes(
            {run.spec.segment_id: run.endpoints for run in serving},
            self.settings[node.name].pue if node.pue is None else node.pue,
            {run.spec.gpu_uuid: idle_power_w.get(run.spec.gpu_uuid, 0.0) for run in serving},
        )

    def _given_up_s(self, name: str, left_s: float) -> float:
        """Return until when a node is waited for: longer where a fleet is just coming back."""
        after_s = self._lost_after_s(name)
        if self.node(name) is not None:
            return left_s + after_s
        return min(max(left_s, self._returned_s) + after_s, left_s + _MOST_WAITS * after_s)

    def _lost_after_s(self, name: str) -> float:
        return self.settings[name].orphan_timeout_s * _LOST_SHARE


def _identities(node: Node) -> tuple[str, ...]:
    """Return the UUIDs of a node's GPUs, and the ids of its segments."""
    return (*(gpu.uuid for gpu in node.gpus), *(run.spec.segment_id for run in node.segments))


# One object for each value: GPUs of a pool are soon compared.
_pool = lru_cache(maxsize=2**12)(Pool)


def _coarse(pue: float) -> float:
    """Return a measured PUE such that nodes which hardly differ share a pool."""
    return round(pue / _PUE_STEP) * _PUE_STEP
