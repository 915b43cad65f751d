"""The node's power at the wall, by MQTT, and the PUE that follows from it."""

import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

from prometheus_client import Gauge

from services.gpuagent.energy.core.pue import PueMeter, told
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.node_place import NodePlace
from services.kit.clock import Clock
from services.kit.config import Mqtt, PowerMeters
from services.kit.mqtt import BrokerConnection, Message, Refused
from services.kit.mqtt.payload import from_json, number

_PUE = Gauge(
    "cinquefoil_node_pue",
    "Wall energy per device energy; method: measured (a meter at the wall), configured.",
    ["node", "method"],
)
_WALL_POWER = Gauge(
    "cinquefoil_node_wall_power_watts", "As a meter at the wall last said; 0: none does.", ["node"]
)

_EVERY_S: Final = 1.0
_HIGHEST_W: Final = 1e6


class WallPower:
    """What a node takes from the wall.

    Args:
        place: The node.
        settings: The broker that a meter talks to; None: there is none.
        accounts: Of its devices.
        clock: Time.
        changed: Called when `pue` is another.
    """

    def __init__(
        self,
        place: NodePlace,
        settings: Mqtt | None,
        accounts: NodeAccounts,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._node = place.name
        self._settings = settings
        self._accounts = accounts
        self._clock = clock
        self._changed = changed
        self._told: float | None = None
        power = PowerMeters() if settings is None else settings.power
        self._meter = PueMeter(power.window_s, power.stale_after_s)
        _PUE.labels(place.name, "configured").set(place.settings.pue)

    @property
    def pue(self) -> float | None:
        """As measured; None: not measured."""
        return self._told

    def loops(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Yield the loops that talk with the broker, each with its name; none without a broker."""
        if self._settings is not None:
            broker = BrokerConnection(self._settings, f"agent-{self._node}", self._clock)
            broker.subscribe(broker.topic("power", self._node), self.take)
            yield "agent.wall_power", self.run()
            yield "agent.mqtt", broker.run()

    def take(self, message: Message) -> None:
        """Take in a meter's message; one that the broker had kept says nothing of now.

        Raises:
            Refused: It is no power.
        """
        found = from_json(message.payload)
        power_w = number(found, "power_w") if isinstance(found, Mapping) else found
        if not 0 <= power_w <= _HIGHEST_W:
            raise Refused(f"{power_w:g} W is not within 0..{_HIGHEST_W:g}")
        if not message.retained:
            self._meter.wall(power_w, self._clock.monotonic())

    async def run(self) -> None:
        """Compare it with what the devices take until cancelled."""
        while True:
            self.compare()
            await self._clock.sleep(_EVERY_S)

    def compare(self) -> None:
        """Compare both energies as they are now."""
        now_s = self._clock.monotonic()
        total_j = math.fsum(account.total_j for account in self._accounts.list().values())
        self._meter.devices(total_j, now_s)
        measured = self._meter.pue(now_s)
        _PUE.labels(self._node, "measured").set(math.nan if measured is None else measured)
        _WALL_POWER.labels(self._node).set(self._meter.wall_power_w(now_s) or 0.0)
        tell = told(self._told, measured)
        if tell != self._told:
            self._told = tell
            self._changed()
