"""MQTT client of the planner: it publishes the newest plan, and takes in grid events."""

import asyncio
import math
from collections.abc import Coroutine, Iterable, Iterator
from datetime import UTC
from functools import partial
from typing import Any, Final

from google.protobuf import json_format

from cinquefoil.planner.v1 import grid_event_pb2
from cinquefoil.planner.v1.records import GridEvent, Plan, PlannedSegment
from services.kit.broadcast import Broadcast
from services.kit.clock import Clock
from services.kit.config import Mqtt
from services.kit.mqtt import BrokerConnection, Message, Refused
from services.kit.mqtt.payload import from_json
from services.kit.rpc.record_mapping import from_message
from services.planner.core.routing_table import Announcement

_LONGEST: Final = 2000
"""Longest sentence, characters: longer ones are cut, as a broker is no archive."""


def record_of(plan: Plan) -> dict[str, Any]:
    """Return the payload of a plan."""
    return {
        "version": plan.version,
        "state": plan.state.name.lower(),
        "created_at": plan.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "strategy": plan.strategy,
        "reason": plan.reason[:_LONGEST],
        "degraded": plan.degraded[:_LONGEST],
        "failure": plan.failure[:_LONGEST],
        "carbon_weight": plan.inputs.carbon_weight,
        "intensity_gco2e_per_kwh": {
            zone: _number(value) for zone, value in plan.inputs.intensity_gco2e_per_kwh.items()
        },
        "gpus": plan.prediction.gpus,
        "power_w": _number(plan.prediction.power_w),
        "carbon_gco2e_per_h": _number(plan.prediction.carbon_gco2e_per_h),
        "models": {
            model: {
                "demand_rps": _number(demand_rps),
                "unserved_rps": _number(plan.prediction.unserved_rps.get(model, 0.0)),
                "accuracy": _number(plan.prediction.accuracy.get(model, math.nan)),
                "latency_s": _number(plan.prediction.latency_s.get(model, math.nan)),
                "variants": _variants(s for s in plan.segments if s.spec.model == model),
            }
            for model, demand_rps in plan.inputs.demand_rps.items()
        },
    }


def _variants(segments: Iterable[PlannedSegment]) -> dict[str, Any]:
    """Return the number of segments and the share of the load by variant."""
    found: dict[str, Any] = {}
    for segment in segments:
        entry = found.setdefault(segment.spec.variant, {"segments": 0, "share": 0.0})
        entry["segments"] += 1
        entry["share"] = round(entry["share"] + segment.share, 6)
    return found


def _number(value: float) -> float | None:
    """Return a number for JSON; None if it has none, as the latency of no requests."""
    return value if math.isfinite(value) else None


def broker_tasks(
    settings: Mqtt | None,
    board: Broadcast[Announcement],
    clock: Clock,
    orders: asyncio.Queue[GridEvent] | None = None,
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield the loops that publish to the broker, each with its name; none without a broker.

    Args:
        settings: The broker; None: there is none.
        board: Announcements, with the newest plan.
        clock: Source of time.
        orders: Receives grid events; None: they do not count.
    """
    if settings is not None:
        broker = BrokerConnection(settings, "planner", clock)
        if orders is not None:
            broker.subscribe(broker.topic("grid", "event"), partial(_take, orders))
        yield "mqtt.plans", _publish_plans(board, broker)
        yield "mqtt.connection", broker.run()


async def _publish_plans(board: Broadcast[Announcement], broker: BrokerConnection) -> None:
    """Publish the newest plan as a retained message, until the board is closed."""
    async for announcement in board.follow():
        if announcement.plan is not None:
            broker.retain(broker.topic("plan"), record_of(announcement.plan))


def _take(orders: asyncio.Queue[GridEvent], message: Message) -> None:
    """Put a grid event, with the fields of the message GridEvent, or its cancellation.

    Raises:
        Refused: It is none, or too many wait.
    """
    found = from_json(message.payload)
    if not isinstance(found, dict):
        raise Refused("must be an object with the fields of GridEvent")
    fields = {name: value for name, value in found.items() if name != "schema"}
    try:
        event = json_format.ParseDict(fields, grid_event_pb2.GridEvent())
        orders.put_nowait(from_message(event, GridEvent))
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise Refused(str(error)[:200]) from error
    except asyncio.QueueFull:
        raise Refused("too many events wait") from None
