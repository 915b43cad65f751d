"""Routing tables as bytes: of a large one, only changed parts are encoded again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1.records import Instance, ModelRoutes, RoutingTable
from services.kit.protobuf_wire import BYTES, varint
from services.planner.adapters.wire.convert import instance_to, routes_to, routing_to

_PART: Final = 128  # instances
_MODELS: Final = plan_pb2.RoutingTable.DESCRIPTOR.fields_by_name["models"].number

PartKey = tuple[str, int, int]
"""Model, position of the part's first instance, and position after its last."""


@dataclass(frozen=True, slots=True)
class EncodedTable:
    """A table as bytes.

    Attributes:
        head: plan_pb2.RoutingTable without models.
        models: plan_pb2.ModelRoutes of each model without instances, by model.
        parts: plan_pb2.ModelRoutes with nothing but instances, in the order of the table.
    """

    head: bytes
    models: dict[str, bytes]
    parts: dict[PartKey, bytes]

    def whole(self) -> bytes:
        """Return the message of the table."""
        routes = {model: [head] for model, head in self.models.items()}
        for (model, *_), part in self.parts.items():
            routes[model].append(part)
        pieces = [self.head]
        for each in routes.values():
            message = b"".join(each)
            pieces += (varint(_MODELS << 3 | BYTES), varint(len(message)), message)
        return b"".join(pieces)


class RoutingEncoder:
    """Encodes tables that differ little from one another."""

    def __init__(self) -> None:
        self._known: dict[PartKey, tuple[tuple[Instance, ...], bytes]] = {}
        self._whole: tuple[RoutingTable | None, bytes] = (None, b"")

    def __call__(self, table: RoutingTable) -> bytes:
        """Return the message of a table."""
        if self._whole[0] is not table:
            self._whole = table, self.encoded(table).whole()
        return self._whole[1]

    def encoded(self, table: RoutingTable) -> EncodedTable:
        """Return the pieces of the message of a table."""
        known, self._known = self._known, {}
        for routes in table.models:
            for start in range(0, len(routes.instances), _PART):
                part = routes.instances[start : start + _PART]
                key = routes.model, start, start + len(part)
                before = known.get(key)
                if before is None or before[0] != part:
                    message = plan_pb2.ModelRoutes(instances=map(instance_to, part))
                    before = part, message.SerializeToString()
                self._known[key] = before
        return EncodedTable(
            routing_to(replace(table, models=())).SerializeToString(),
            {each.model: _without_instances(each) for each in table.models},
            {key: part for key, (_, part) in self._known.items()},
        )


def _without_instances(routes: ModelRoutes) -> bytes:
    return routes_to(replace(routes, instances=())).SerializeToString()
