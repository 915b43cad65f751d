"""MQTT topics of the carbon service: publishes intensities, subscribes to grid signals."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from datetime import timedelta
from socket import gethostname
from typing import Any, Final
from zlib import crc32

from cinquefoil.carbon.v1.records import Forecast
from services.carbon.core.model import Intensity, Sample
from services.carbon.core.mqtt_payload import record_of, sample_of
from services.carbon.core.sources.feed import Reading, SourceFailed
from services.carbon.runtime.grid_state import GridState
from services.carbon.runtime.live_sources import Ingestion
from services.kit.clock import Clock, RealClock
from services.kit.config import Deployment
from services.kit.config.carbon_sources import MqttSource, Signal
from services.kit.mqtt import BrokerConnection, Message

_HORIZON: Final = timedelta(hours=6)
"""Horizon of the published forecasts."""


class IntensityPublisher:
    """Publishes each zone's newest intensity.

    Args:
        state: The grid's state.
        broker: Connection to the broker.
        grid_clock: Grid time.
    """

    def __init__(self, state: GridState, broker: BrokerConnection, grid_clock: Clock) -> None:
        self._state = state
        self._broker = broker
        self._clock = grid_clock

    async def publish_changes(self) -> None:
        """Publish every change, until the state is closed."""
        async for changed in self._state.watch(()):
            self._publish(changed)

    async def refresh(self, every_s: float, clock: Clock) -> None:
        """Publish all zones again every `every_s` of `clock`, until cancelled: ages grow."""
        while True:
            await clock.sleep(every_s)
            self._broker.repeat_status()
            self._publish(self._state.latest.values())

    def _publish(self, intensities: Iterable[Intensity]) -> None:
        for each in intensities:
            now = self._clock.now()
            record = record_of(each, now, self._forecast(each))
            self._broker.retain(self._broker.topic("carbon", each.zone), record)

    def _forecast(self, intensity: Intensity) -> Forecast | None:
        if intensity.signal == "percentile":
            return None
        return self._state.forecast(intensity.zone, _HORIZON, self._clock.now())


class SignalSubscriber:
    """A zone's topic. Of many messages only the newest is kept, so that a flood fills no memory.

    Args:
        broker: Connection to the broker.
        topic: The topic.
        signal: Signal of the zone.
        ingestion: Where values go.
        clock: Time.
    """

    def __init__(
        self,
        broker: BrokerConnection,
        topic: str,
        signal: Signal,
        ingestion: Ingestion,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._signal: Signal = signal
        self._ingestion = ingestion
        self._clock = clock
        self._newest: Sample | None = None
        self._received = asyncio.Event()
        broker.subscribe(topic, self.handle)

    def handle(self, message: Message) -> None:
        """Keep a message's value.

        Raises:
            Refused: The message cannot be used.
        """
        known_until = self._ingestion.live.feed.known_until
        sample = sample_of(message, self._signal, self._clock.now(), known_until)
        if sample is not None:
            self._newest = sample
            self._received.set()

    async def run(self, every_s: float) -> None:
        """Ingest the newest message, at most every `every_s`, until cancelled."""
        while True:
            if await self._message_within(every_s) and self._newest is not None:
                self._received.clear()
                await self._ingestion.add(Reading((self._newest,)))
                await self._clock.sleep(every_s)
            elif not self._broker.connected:
                self._ingestion.fail(SourceFailed("unreachable", "no connection to the broker"))

    async def _message_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._received.wait()
        except TimeoutError:
            return False
        return True


def broker_loops(
    deployment: Deployment,
    state: GridState,
    ingestions: Iterable[Ingestion],
    clock: Clock,
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield the loops of MQTT, each with a name for its task; none without a broker.

    Args:
        deployment: Settings of the broker and of the zones.
        state: The grid's state.
        ingestions: Live sources.
        clock: Grid time.
    """
    settings = deployment.mqtt
    if settings is None:
        return
    at = f"{gethostname()} {deployment.carbon.listen}"
    instance = f"-{crc32(at.encode()):08x}"
    broker = BrokerConnection(settings, "carbon", RealClock(), instance=instance)
    publisher = IntensityPublisher(state, broker, clock)
    yield "carbon.mqtt.changes", publisher.publish_changes()
    yield "carbon.mqtt.refresh", publisher.refresh(settings.refresh_s, RealClock())
    for ingestion in ingestions:
        live = ingestion.live
        if isinstance(live.settings, MqttSource):
            signal = deployment.carbon.zones[live.zone].signal
            topic = live.settings.topic
            subscriber = SignalSubscriber(broker, topic, signal, ingestion, clock)
            yield f"carbon.mqtt.signal[{live.zone}]", subscriber.run(live.settings.poll_s)
    yield "carbon.mqtt.connection", broker.run()
