"""One service's connection to the broker, kept for ever. The only module that knows aiomqtt.

What the service wants the broker to retain lives here too, one payload by topic: a broker that
comes back, whatever it has forgotten, is told all of it again. While it is away nothing queues up
but the newest payload of each topic.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from services.kit.backoff import Backoff
from services.kit.clock import Clock
from services.kit.config.mqtt import Mqtt, MqttTls
from services.kit.mqtt import metrics
from services.kit.mqtt.payload import LONGEST_BYTES, Message, Refused, to_json
from services.kit.net import split_address
from services.kit.telemetry import logs

_log = logs.get("mqtt")

Take = Callable[[Message], None]
"""Takes a message in; raises `Refused` where it cannot."""

_QOS: Final = 1
_TIMEOUT_S: Final = 5.0
_STEADY_S: Final = 5.0
_GOODBYE_S: Final = 1.0
_MOST_WAITING: Final = 1000
"""Messages that may wait to be taken in; more are dropped."""


@dataclass(frozen=True, slots=True)
class _Secrets:
    """What is read anew for each connection, so that files may be replaced."""

    tls: ssl.SSLContext | None
    password: str | None


class Link:
    """What one service says and hears over MQTT; `run` keeps it connected.

    Args:
        settings: The broker.
        service: Names the client and its status topic, for example "carbon".
        clock: To wait with before connecting again.
    """

    def __init__(self, settings: Mqtt, service: str, clock: Clock) -> None:
        self._settings = settings
        self._service = service
        self._clock = clock
        self._status = self.topic("status", service)
        self._retained: dict[str, bytes] = {self._status: self._state(online=True)}
        self._unsent: dict[str, None] = {}  # in order of first change
        self._news = asyncio.Event()
        self._listeners: dict[str, list[Take]] = {}
        self._complained: set[str] = set()
        self._trouble = ""
        self.connected = False

    def topic(self, *levels: str) -> str:
        """Return a topic below the deployment's prefix."""
        return "/".join((self._settings.prefix, *levels))

    def retain(self, topic: str, record: Mapping[str, Any]) -> None:
        """Have the broker keep a record for whoever subscribes, instead of the one before."""
        payload = to_json(record)
        if self._retained.get(topic) != payload:
            self._retained[topic] = payload
            self._unsent[topic] = None
            self._news.set()

    def listen(self, topic: str, take: Take) -> None:
        """Hand the messages of a topic to `take`; call it before `run`."""
        self._listeners.setdefault(topic, []).append(take)

    async def run(self) -> None:
        """Stay connected for ever; when cancelled, say so to subscribers first."""
        backoff = Backoff(maximum_s=_STEADY_S)
        while True:
            began_s = self._clock.monotonic()
            try:
                await self._connect()
            except* (aiomqtt.MqttError, OSError) as errors:
                self._note(str(_first(errors)))
            finally:
                self._set_connected(connected=False)
            _honour_cancellation()
            if self._clock.monotonic() - began_s > _STEADY_S:
                backoff.reset()
            await self._clock.sleep(backoff.next_s())

    async def _connect(self) -> None:
        """Connect, and stay until the connection breaks."""
        secrets = await asyncio.to_thread(_secrets, self._settings)
        async with self._client(secrets) as client:
            await self._subscribe(client)
            _honour_cancellation()
            self._set_connected(connected=True)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._send(client), name="mqtt.send")
                    await self._receive(client)
            except asyncio.CancelledError:
                await self._take_leave(client)
                raise

    def _client(self, secrets: _Secrets) -> aiomqtt.Client:
        host, port = split_address(self._settings.broker)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # paho's
        properties.MaximumPacketSize = 2 * LONGEST_BYTES  # the broker drops what is longer
        return aiomqtt.Client(
            host,
            port,
            identifier=f"{self._settings.client_id}-{self._service}",
            username=self._settings.username or None,
            password=secrets.password,
            tls_context=secrets.tls,
            protocol=aiomqtt.ProtocolVersion.V5,
            properties=properties,
            will=aiomqtt.Will(self._status, self._state(online=False), _QOS, retain=True),
            keepalive=self._settings.keepalive_s,
            timeout=_TIMEOUT_S,
            max_queued_incoming_messages=_MOST_WAITING,
        )

    async def _subscribe(self, client: aiomqtt.Client) -> None:
        for topic in self._listeners:
            granted = await client.subscribe(topic, _QOS)
            if any(_value(reason) >= 0x80 for reason in granted):
                _log.warning("the broker refuses a subscription", topic=topic, why=str(granted[0]))

    async def _send(self, client: aiomqtt.Client) -> None:
        """Publish everything, then what is new, for ever."""
        self._unsent = dict.fromkeys(self._retained)
        while True:
            while self._unsent:
                topic = next(iter(self._unsent))
                del self._unsent[topic]  # before: what changes meanwhile is sent again
                await client.publish(topic, self._retained[topic], _QOS, retain=True)
                _honour_cancellation()
                metrics.PUBLISHED.labels(self._service).inc()
            self._news.clear()
            await self._news.wait()

    async def _receive(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            self._take(message.topic.value, Message(message.payload, retained=message.retain))

    def _take(self, topic: str, message: Message) -> None:
        try:
            for take in self._listeners.get(topic, ()):
                take(message)
        except Refused as error:
            metrics.REFUSED.labels(self._service, topic).inc()
            if topic not in self._complained:
                self._complained.add(topic)
                _log.warning("a message was refused", topic=topic, why=str(error))
        else:
            metrics.RECEIVED.labels(self._service, topic).inc()

    async def _take_leave(self, client: aiomqtt.Client) -> None:
        """Tell subscribers; the broker publishes no last will of who leaves in peace."""
        with suppress(aiomqtt.MqttError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await client.publish(self._status, self._state(online=False), _QOS, retain=True)

    def _state(self, *, online: bool) -> bytes:
        return to_json({"service": self._service, "online": online})

    def _set_connected(self, *, connected: bool) -> None:
        self.connected = connected
        metrics.CONNECTED.labels(self._service).set(connected)
        if connected:
            self._trouble = ""
            self._complained.clear()
            _log.info("connected to the broker", broker=self._settings.broker)

    def _note(self, trouble: str) -> None:
        """Log why there is no connection, once for as long as the reason stays the same."""
        if trouble != self._trouble:
            _log.warning("no connection to the broker; trying again", why=trouble)
        self._trouble = trouble


def _secrets(settings: Mqtt) -> _Secrets:
    """Read certificates and password. Blocks.

    Raises:
        OSError: A file cannot be read, or is no certificate.
    """
    password = None
    if settings.password_file is not None:
        password = settings.password_file.read_text(encoding="utf-8").rstrip("\r\n")
    return _Secrets(None if settings.tls is None else _context(settings.tls), password)


def _context(tls: MqttTls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def _first(group: BaseExceptionGroup[Exception]) -> BaseException:
    """Return one of the exceptions of a tree."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _value(reason: Any) -> int:
    """Return the number of an answer to a subscription, in whichever form it comes."""
    return int(getattr(reason, "value", reason))


def _honour_cancellation() -> None:
    """Raise where this task is being cancelled, and the wish may have been lost.

    A TaskGroup raises its tasks' error instead; `asyncio.wait_for` before Python 3.12, with which
    aiomqtt waits for acknowledgements, returns where one comes at the same moment.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
