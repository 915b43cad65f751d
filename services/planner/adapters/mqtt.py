"""The planner as an MQTT client: it publishes the newest plan."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from services.kit.broadcast import Broadcast
from services.kit.clock import Clock
from services.kit.config import Mqtt
from services.kit.mqtt import BrokerConnection
from services.planner.adapters.mqtt_payload import record_of
from services.planner.core.routing_table import Announcement


def broker_tasks(
    settings: Mqtt | None, board: Broadcast[Announcement], clock: Clock
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield the loops that talk with the broker, each with its name; none without a broker.

    Args:
        settings: The broker; None: there is none.
        board: Has the newest plan.
        clock: Time.
    """
    if settings is not None:
        broker = BrokerConnection(settings, "planner", clock)
        yield "mqtt.plans", _tell(board, broker)
        yield "mqtt.connection", broker.run()


async def _tell(board: Broadcast[Announcement], broker: BrokerConnection) -> None:
    """Have the broker keep the newest plan, until the board is closed."""
    async for announcement in board.follow():
        if announcement.plan is not None:
            broker.retain(broker.topic("plan"), record_of(announcement.plan))
