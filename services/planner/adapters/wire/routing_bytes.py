"""Routing tables as bytes: of a large one, only the parts that have changed are encoded again."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cinquefoil.planner.v1 import plan_pb2
from services.kit.protobuf_wire import BYTES, varint
from services.planner.adapters.wire.convert import instance_to, routes_to, routing_to
from services.planner.core.routing_table import Instance, ModelRoutes, RoutingTable

_PART: Final = 128  # instances
_MODELS: Final = plan_pb2.RoutingTable.DESCRIPTOR.fields_by_name["models"].number

_Known = dict[tuple[str, int], tuple[tuple[Instance, ...], bytes]]
"""Parts of the last table: by model and first instance the instances, and their bytes."""


class RoutingEncoder:
    """Encodes tables that hardly differ from one another."""

    def __init__(self) -> None:
        self._table: tuple[RoutingTable | None, bytes] = (None, b"")
        self._known: _Known = {}

    def __call__(self, table: RoutingTable) -> bytes:
        """Return the message of a table."""
        if self._table[0] is not table:
            known: _Known = {}
            models = [self._model(routes, known) for routes in table.models]
            head = RoutingTable(table.revision, table.plan_version, (), table.term)
            pieces = [routing_to(head).SerializeToString()]
            for model in models:
                pieces += (varint(_MODELS << 3 | BYTES), varint(len(model)), model)
            self._table, self._known = (table, b"".join(pieces)), known
        return self._table[1]

    def _model(self, routes: ModelRoutes, known: _Known) -> bytes:
        """Return the message of a model's routes, joined of its parts."""
        pieces = [routes_to(replace(routes, instances=())).SerializeToString()]
        for start in range(0, len(routes.instances), _PART):
            part, key = routes.instances[start : start + _PART], (routes.model, start)
            before = self._known.get(key)
            if before is None or before[0] != part:
                message = plan_pb2.ModelRoutes(instances=map(instance_to, part))
                before = part, message.SerializeToString()
            known[key] = before
            pieces.append(before[1])
        return b"".join(pieces)
