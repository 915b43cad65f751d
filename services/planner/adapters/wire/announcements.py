"""Announcements as bytes of WatchResponse, encoded once for all subscribers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cinquefoil.condition.v1.records import Condition
from cinquefoil.planner.v1 import plan_pb2, planner_pb2, waiting_pb2
from cinquefoil.planner.v1.records import Forward, Plan, PlanState, RoutingTable, WaitingRelease
from services.kit.protobuf_wire import BYTES, varint
from services.kit.rpc.condition_messages import condition_messages
from services.kit.rpc.record_mapping import to_message
from services.planner.adapters.wire.routing_bytes import RoutingEncoder
from services.planner.adapters.wire.routing_change import routing_change
from services.planner.core.routing_table import Announcement

_ROUTING: Final = planner_pb2.WatchResponse.DESCRIPTOR.fields_by_name["routing"].number
_MAX_NODE_CONDITIONS = 8
_PAIRS = 8
"""Number of differences between two announcements to keep: subscribers rarely lag further."""


@dataclass(frozen=True, slots=True, eq=False)
class _RouterView:
    """Part of an announcement that a router needs."""

    version: int
    state: PlanState | None
    conditions: tuple[Condition, ...]
    routing: RoutingTable
    releases: tuple[WaitingRelease, ...] | None
    forwards: tuple[Forward, ...] | None

    def equals(self, other: _RouterView) -> bool:
        same = self.releases is other.releases and self.forwards is other.forwards
        return same and (
            (self.version, self.state, self.conditions, self.routing.revision)
            == (other.version, other.state, other.conditions, other.routing.revision)
        )


class AnnouncementEncoder:
    """Encodes each announcement once, and only what is new in it.

    Args:
        digest: Returns the digest of the deployment file.
    """

    def __init__(self, digest: Callable[[], str]) -> None:
        self._digest = digest
        self._whole: tuple[Announcement | None, bytes] = (None, b"")
        self._plan: tuple[Plan | None, bytes] = (None, b"")
        self._routing = RoutingEncoder()
        self._view: tuple[Announcement, _RouterView] | None = None
        self._difference = lru_cache(_PAIRS)(self._encoded_difference)

    def whole(self, said: Announcement) -> bytes:
        """Return a whole announcement."""
        if self._whole[0] is not said:
            if said.plan is not None and self._plan[0] is not said.plan:
                self._plan = said.plan, _encoded(plan=to_message(said.plan, plan_pb2.Plan))
            rest = _encoded(
                conditions=condition_messages(said.conditions),
                config_digest=self._digest(),
                **_released(said.releases),
                **_forwarded(said.forwards),
            )
            plan = b"" if said.plan is None else self._plan[1]
            self._whole = said, plan + self._table(said.routing) + rest
        return self._whole[1]

    def for_router(self) -> Callable[[Announcement], bytes | None]:
        """Return an encoder of announcements for one router: the table first, then changes.

        It returns None for an announcement without news for the router.
        """
        sent: _RouterView | None = None

        def feed(said: Announcement) -> bytes | None:
            nonlocal sent
            before, now = sent, self._router_view(said)
            if before is not None and now.equals(before):
                return None
            sent = now
            return self._difference(before, now)

        return feed

    def _router_view(self, said: Announcement) -> _RouterView:
        """Return the part of an announcement that a router needs: few of many nodes' conditions."""
        if self._view is None or self._view[0] is not said:
            plan, nodes, conditions = said.plan, 0, []
            for each in said.conditions:
                nodes += each.subject.startswith("node/")
                if nodes <= _MAX_NODE_CONDITIONS or not each.subject.startswith("node/"):
                    conditions.append(each)
            view = _RouterView(
                plan.version if plan else 0,
                plan.state if plan else None,
                tuple(conditions),
                said.routing,
                said.releases,
                said.forwards,
            )
            self._view = said, view
        return self._view[1]

    def _encoded_difference(self, before: _RouterView | None, now: _RouterView) -> bytes:
        """Return the message to a router that has `before`; None: it has nothing."""
        news = None if before is not None and before.releases is now.releases else now.releases
        sent = before is not None and before.forwards is now.forwards
        forwards = None if sent else now.forwards
        response = planner_pb2.WatchResponse(
            conditions=condition_messages(now.conditions),
            config_digest=self._digest(),
            **_released(news),
            **_forwarded(forwards),
        )
        if now.state is not None:
            state = plan_pb2.PlanState.ValueType(now.state)
            response.plan.CopyFrom(plan_pb2.Plan(version=now.version, state=state))
        if before is not None and before.routing.revision != now.routing.revision:
            change = routing_change(before.routing, now.routing)
            response.routing_change.CopyFrom(change)
        encoded = response.SerializeToString()
        return encoded + self._table(now.routing) if before is None else encoded

    def _table(self, table: RoutingTable) -> bytes:
        """Return a response with a whole table only; it may be joined with others."""
        data = self._routing(table)
        return varint(_ROUTING << 3 | BYTES) + varint(len(data)) + data


def _released(releases: tuple[WaitingRelease, ...] | None) -> dict[str, Any]:
    """Return the fields of a response that say what is released; none, if it is not new."""
    if releases is None:
        return {}
    found = [to_message(each, waiting_pb2.WaitingRelease) for each in releases]
    return {"releases": found, "releases_changed": True}


def _forwarded(forwards: tuple[Forward, ...] | None) -> dict[str, Any]:
    """Return the fields of a response that say what may leave the region; none, if not new."""
    if forwards is None:
        return {}
    found = [to_message(each, planner_pb2.Forward) for each in forwards]
    return {"forwards": found, "forwards_changed": True}


def _encoded(**fields: Any) -> bytes:
    """Return fields of a response as bytes; those of different fields may be joined."""
    return planner_pb2.WatchResponse(**fields).SerializeToString()
