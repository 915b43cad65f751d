"""Plans, routing tables and load reports <-> their protobuf."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Value
from pydantic import JsonValue

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.records import Instance, ModelRoutes, RoutingTable
from services.kit.errors import InvalidArgument
from services.kit.rpc.record_mapping import to_message
from services.planner.core.accounting.account import Tokens
from services.planner.core.load_report import LoadReport
from services.planner.core.waiting.singles import WaitingHere

_LONGEST_NAME = 128


def routing_to(table: RoutingTable) -> plan_pb2.RoutingTable:
    """Return the message of a routing table."""
    return plan_pb2.RoutingTable(
        revision=table.revision,
        plan_version=table.plan_version,
        term=table.term,
        models=map(routes_to, table.models),
    )


def routes_to(routes: ModelRoutes) -> plan_pb2.ModelRoutes:
    """Return the message of a model's routes."""
    message = to_message(replace(routes, instances=()), plan_pb2.ModelRoutes)
    message.instances.extend(map(instance_to, routes.instances))
    return message


@lru_cache(maxsize=2**16)
def instance_to(instance: Instance) -> plan_pb2.Instance:
    """Return the message of an instance: one object for all equal ones."""
    return to_message(instance, plan_pb2.Instance)


def values_from(messages: Mapping[str, Value]) -> dict[str, JsonValue]:
    """Return values of settings by path; whole numbers as int.

    Raises:
        InvalidArgument: A value is not set.
    """
    for path, message in messages.items():
        if message.WhichOneof("kind") is None:
            raise InvalidArgument.at(f"values[{path}]", "required: a value, or null")
    return {path: _plain(MessageToDict(message)) for path, message in messages.items()}


def _plain(value: Any) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    found: JsonValue = value
    return found


def load_from(
    message: planner_pb2.ReportLoadRequest, percentiles: Mapping[str, float]
) -> LoadReport:
    """Return a router's load report.

    Args:
        message: The report.
        percentiles: The SLO's percentile by model.

    Raises:
        InvalidArgument: The report does not name its router, or has no time for a window.
    """
    if not 0 < len(message.router_id) <= _LONGEST_NAME:
        raise InvalidArgument.at("router_id", f"must have 1..{_LONGEST_NAME} characters")
    try:
        window_s = message.window.ToTimedelta().total_seconds()
    except (ValueError, OverflowError) as error:
        raise InvalidArgument.at("window", str(error)) from error
    loads = {load.model: load for load in message.models}.values()  # each model once
    return LoadReport(
        router_id=message.router_id,
        revision=message.routing_revision,
        window_s=window_s,
        arrivals={load.model: load.arrivals for load in loads},
        answered=sum(load.answered for load in loads),
        latency_s={
            load.model: load.latency_s[key]
            for load in loads
            if load.model in percentiles
            and (key := f"{percentiles[load.model]:g}") in load.latency_s
        },
        late={load.model: load.late for load in loads},
        by_variant={load.model: dict(load.answered_by_variant) for load in loads},
        refused={load.model: load.refused for load in loads},
        tokens={
            load.model: Tokens(
                load.input_tokens,
                load.output_tokens,
                # A sum of squares is at most the square of the sum.
                min(load.input_tokens_squared, float(load.input_tokens) ** 2),
                min(load.cached_input_tokens, load.input_tokens),
            )
            for load in loads
            if load.input_tokens or load.output_tokens
        },
        first_second=message.first_second,
        arrivals_per_s={load.model: load.arrivals_per_s for load in loads if load.arrivals_per_s},
        unreachable=frozenset(message.unreachable_segments),
        waiting={
            load.model: WaitingHere(
                [(each.due_s, each.requests) for each in load.waiting.singles],
                load.waiting.answered,
            )
            for load in loads
            if load.HasField("waiting")
        },
    )
