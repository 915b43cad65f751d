"""The carbon service at a broker: tells every zone's intensity, hears those that come by topic."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from services.carbon.core.model import Forecast, Intensity, Sample, Signal
from services.carbon.core.monitor import Monitor
from services.carbon.core.mqtt_payload import record_of, sample_of
from services.carbon.core.sources.provider import Reading, SourceFailed
from services.carbon.runtime.grid_state import GridState
from services.carbon.runtime.ingestion import Intake
from services.carbon.runtime.live_sources import Live
from services.kit.clock import Clock, RealClock
from services.kit.config import Deployment, MqttSource
from services.kit.mqtt import BrokerConnection, Message

_AHEAD: Final = timedelta(hours=6)
"""How far the forecasts reach that are told."""


class Teller:
    """Keeps each zone's newest intensity at the broker.

    Args:
        state: What is known.
        broker: To the broker.
        grid_clock: Tells grid time.
    """

    def __init__(self, state: GridState, broker: BrokerConnection, grid_clock: Clock) -> None:
        self._state = state
        self._broker = broker
        self._clock = grid_clock

    async def changes(self) -> None:
        """Tell every change, until the state is closed."""
        async for news in self._state.watch(()):
            self._tell(news)

    async def ages(self, every_s: float, clock: Clock) -> None:
        """Tell all zones again every `every_s` of `clock`, for ever."""
        while True:
            await clock.sleep(every_s)
            self._tell(self._state.latest.values())

    def _tell(self, intensities: Iterable[Intensity]) -> None:
        for each in intensities:
            now = self._clock.now()
            record = record_of(each, now, self._forecast(each))
            self._broker.retain(self._broker.topic("carbon", each.zone), record)

    def _forecast(self, intensity: Intensity) -> Forecast | None:
        if intensity.signal == "percentile":
            return None
        return self._state.forecast(intensity.zone, _AHEAD, self._clock.now())


class Listener:
    """A zone's topic. Of many messages the newest counts, so that a flood fills no memory.

    Args:
        broker: To the broker.
        topic: The topic.
        signal: What the zone's numbers mean.
        intake: Where values go.
        clock: Time.
    """

    def __init__(
        self, broker: BrokerConnection, topic: str, signal: Signal, intake: Intake, clock: Clock
    ) -> None:
        self._broker = broker
        self._signal: Signal = signal
        self._intake = intake
        self._clock = clock
        self._newest: Sample | None = None
        self._news = asyncio.Event()
        broker.subscribe(topic, self.take)

    def take(self, message: Message) -> None:
        """Take a message.

        Raises:
            Refused: It cannot be used.
        """
        known_until = self._intake.feed.known_until
        sample = sample_of(message, self._signal, self._clock.now(), known_until)
        if sample is not None:
            self._newest = sample
            self._news.set()

    async def run(self, every_s: float) -> None:
        """Take in the newest message, at most every `every_s`, for ever."""
        while True:
            if await self._comes(every_s) and self._newest is not None:
                self._news.clear()
                self._intake.take(Reading((self._newest,)))
                await self._intake.keep()
                await self._clock.sleep(every_s)
            elif not self._broker.connected:
                self._intake.fail(SourceFailed("unreachable", "no connection to the broker"))

    async def _comes(self, within_s: float) -> bool:
        """Wait for a message; return whether one came."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


def conversation(
    deployment: Deployment, state: GridState, spoken: Iterable[tuple[Live, Intake]], clock: Clock
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield the loops that talk with the broker, each with a name for its task; none without one.

    Args:
        deployment: For the broker, and what the zones' numbers mean.
        state: What to tell.
        spoken: Live sources that speak by themselves, with where their values go.
        clock: Grid time; where there are live sources, the time.
    """
    settings = deployment.mqtt
    if settings is None:
        return
    broker = BrokerConnection(settings, "carbon", RealClock())
    teller = Teller(state, broker, clock)
    yield "carbon.mqtt.changes", teller.changes()
    yield "carbon.mqtt.ages", teller.ages(settings.refresh_s, RealClock())
    for live, intake in spoken:
        if isinstance(live.settings, MqttSource):
            signal = deployment.carbon.zones[live.zone].signal
            listener = Listener(broker, live.settings.topic, signal, intake, clock)
            yield f"carbon.mqtt.hear[{live.zone}]", listener.run(live.settings.poll_s)
    yield "carbon.mqtt.connection", broker.run()


def spoken(
    live: Iterable[Live],
    monitors: Mapping[str, Monitor],
    heard: Mapping[str, asyncio.Event],
    clock: Clock,
) -> Iterator[tuple[Live, Intake]]:
    """Yield the live sources that nobody asks, each with where its values go.

    Args:
        live: All of them.
        monitors: By zone.
        heard: What wakes a zone's follower, by zone.
        clock: The time.
    """
    for each in live:
        if each.provider is None:
            monitor = monitors[each.zone]
            yield each, Intake(each.feed, monitor, heard[each.zone], clock, each.cache)
