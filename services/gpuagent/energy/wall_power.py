"""The node's power at the wall, by MQTT, and the PUE that follows from it."""

import math
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

from prometheus_client import Gauge

from services.gpuagent.energy.core.pue import PueMeter, reported
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.supervision.managed_node import ManagedNode
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


@dataclass(slots=True, eq=False)
class WallPower:
    """Power of a node at the wall.

    Attributes:
        node: The node.
        configured_pue: What the deployment file says.
        settings: The broker that a meter talks to; None: there is none.
        accounts: Of its devices.
        pue: As measured; None: not measured.
    """

    node: ManagedNode
    configured_pue: InitVar[float]
    settings: Mqtt | None
    accounts: NodeAccounts
    pue: float | None = field(init=False, default=None)
    _meter: PueMeter = field(init=False)

    def __post_init__(self, configured_pue: float) -> None:
        power = PowerMeters() if self.settings is None else self.settings.power
        self._meter = PueMeter(power.window_s, power.stale_after_s)
        _PUE.labels(self.node.name, "configured").set(configured_pue)

    def loops(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Yield the loops that talk with the broker, each with its name; none without a broker."""
        if self.settings is not None:
            broker = BrokerConnection(self.settings, f"agent-{self.node.name}", self.node.clock)
            broker.subscribe(broker.topic("power", self.node.name), self.take)
            yield "agent.wall_power", self.node.every(_EVERY_S, self.compare)
            yield "agent.mqtt", broker.run()

    def take(self, message: Message) -> None:
        """Add a meter's message; ignore one that the broker had retained, as its age is unknown.

        Raises:
            Refused: The message is not a power.
        """
        found = from_json(message.payload)
        power_w = number(found, "power_w") if isinstance(found, Mapping) else found
        if not 0 <= power_w <= _HIGHEST_W:
            raise Refused(f"{power_w:g} W is not within 0..{_HIGHEST_W:g}")
        if not message.retained:
            self._meter.wall(power_w, self.node.clock.monotonic())

    def compare(self) -> None:
        """Compare both energies as they are now."""
        now_s = self.node.clock.monotonic()
        total_j = math.fsum(account.total_j for account in self.accounts.list().values())
        self._meter.devices(total_j, now_s)
        measured = self._meter.pue(now_s)
        _PUE.labels(self.node.name, "measured").set(math.nan if measured is None else measured)
        _WALL_POWER.labels(self.node.name).set(self._meter.wall_power_w(now_s) or 0.0)
        pue = reported(self.pue, measured)
        if pue != self.pue:
            self.pue = pue
            self.node.changed()
