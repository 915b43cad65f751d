"""One service's connection to the broker; reconnects until cancelled. Only this imports aiomqtt.

The retained payloads are kept here too, the newest of each topic: after every reconnection all of
them are published again, and while the broker is away nothing else queues up.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from prometheus_client import Counter, Gauge

from services.kit.backoff import Backoff
from services.kit.clock import Clock
from services.kit.config import Mqtt
from services.kit.errors import FailedPrecondition
from services.kit.mqtt.payload import MAX_BYTES, Message, Refused, to_json
from services.kit.net import split_address
from services.kit.rpc.certificates import client_context
from services.kit.rpc.reconnect import Reconnector, raise_if_cancelled
from services.kit.telemetry import logs

_CONNECTED = Gauge("cinquefoil_mqtt_connected", "1: connected to the broker.", ["service"])
_PUBLISHED = Counter(
    "cinquefoil_mqtt_published", "Messages acknowledged by the broker.", ["service"]
)
_RECEIVED = Counter(
    "cinquefoil_mqtt_received", "Messages received and used, by topic.", ["service", "topic"]
)
_REFUSED = Counter(
    "cinquefoil_mqtt_refused",
    "Messages that could not be used, by topic; the log has the reason of the first.",
    ["service", "topic"],
)


_log = logs.get("mqtt")

Handler = Callable[[Message], None]
"""Handles a message; raises `Refused` for one that it cannot use."""

_QOS: Final = 1
_TIMEOUT_S: Final = 5.0
_STEADY_S: Final = 5.0
_GOODBYE_S: Final = 1.0
_MAX_QUEUED: Final = 1000
"""Incoming messages that may wait; more are dropped."""


class BrokerConnection:
    """MQTT connection of one service; `run` keeps it connected.

    Args:
        settings: Settings of the broker.
        service: Name in the client id and the status topic, for example "carbon".
        clock: Clock to wait with before reconnecting.
        instance: Suffix of the client id of a service that may have several instances, for example
            "-1f0b33c2": a broker closes the older of two connections with one id.
    """

    def __init__(self, settings: Mqtt, service: str, clock: Clock, *, instance: str = "") -> None:
        self._settings = settings
        self._service = service
        self._reconnector = Reconnector(
            f"MQTT broker {settings.broker}",
            clock,
            backoff=Backoff(maximum_s=_STEADY_S),
            steady_s=_STEADY_S,
            errors=(aiomqtt.MqttError, OSError, FailedPrecondition),
        )
        self._client_id = f"{settings.client_id}-{service}{instance}"
        self._status = self.topic("status", service)
        self._retained: dict[str, bytes] = {self._status: self._state(online=True)}
        self._unsent: dict[str, None] = {}  # in order of first change
        self._changed = asyncio.Event()
        self._handlers: dict[str, list[Handler]] = {}
        self._refused_topics: set[str] = set()
        self.connected = False

    def topic(self, *levels: str) -> str:
        """Return a topic below the deployment's prefix."""
        return "/".join((self._settings.prefix, *levels))

    def retain(self, topic: str, record: Mapping[str, Any]) -> None:
        """Publish a record that the broker retains in place of the topic's last one."""
        payload = to_json(record)
        if self._retained.get(topic) != payload:
            self._retained[topic] = payload
            self._unsent[topic] = None
            self._changed.set()

    def repeat_status(self) -> None:
        """Publish the status again: another instance may have published that it is offline."""
        self._unsent[self._status] = None
        self._changed.set()

    def subscribe(self, topic: str, handler: Handler) -> None:
        """Call `handler` with each message of a topic; to be called before `run`."""
        self._handlers.setdefault(topic, []).append(handler)

    async def run(self) -> None:
        """Stay connected until cancelled; then publish that the service is offline."""
        await self._reconnector.run(self._connect)

    async def _connect(self) -> None:
        """Connect, and stay until the connection breaks."""
        tls, password = await asyncio.to_thread(_credentials, self._settings)
        try:
            async with self._client(tls, password) as client:
                await self._request_topics(client)
                raise_if_cancelled()
                self._note_connected()
                try:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(self._send(client), name="mqtt.send")
                        await self._receive(client)
                except asyncio.CancelledError:
                    await self._publish_offline(client)
                    raise
        finally:
            self.connected = False
            _CONNECTED.labels(self._service).set(0)

    def _client(self, tls: ssl.SSLContext | None, password: str | None) -> aiomqtt.Client:
        host, port = split_address(self._settings.broker)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # paho's
        properties.MaximumPacketSize = 2 * MAX_BYTES  # the broker drops longer ones
        return aiomqtt.Client(
            host,
            port,
            identifier=self._client_id,
            username=self._settings.username or None,
            password=password,
            tls_context=tls,
            protocol=aiomqtt.ProtocolVersion.V5,
            properties=properties,
            will=aiomqtt.Will(self._status, self._state(online=False), _QOS, retain=True),
            keepalive=self._settings.keepalive_s,
            timeout=_TIMEOUT_S,
            max_queued_incoming_messages=_MAX_QUEUED,
        )

    async def _request_topics(self, client: aiomqtt.Client) -> None:
        for topic in self._handlers:
            granted = await client.subscribe(topic, _QOS)
            if any(_value(reason) >= 0x80 for reason in granted):
                _log.warning("the broker refuses a subscription", topic=topic, why=str(granted[0]))

    async def _send(self, client: aiomqtt.Client) -> None:
        """Publish every retained payload, then each that changes."""
        self._unsent = dict.fromkeys(self._retained)
        while True:
            while self._unsent:
                topic = next(iter(self._unsent))
                del self._unsent[topic]  # before: a payload that changes meanwhile is sent again
                await client.publish(topic, self._retained[topic], _QOS, retain=True)
                raise_if_cancelled()
                _PUBLISHED.labels(self._service).inc()
            self._changed.clear()
            await self._changed.wait()

    async def _receive(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            self._handle(message.topic.value, Message(message.payload, retained=message.retain))

    def _handle(self, topic: str, message: Message) -> None:
        try:
            for handler in self._handlers.get(topic, ()):
                handler(message)
        except Refused as error:
            _REFUSED.labels(self._service, topic).inc()
            if topic not in self._refused_topics:
                self._refused_topics.add(topic)
                _log.warning("a message was refused", topic=topic, why=str(error))
        else:
            _RECEIVED.labels(self._service, topic).inc()

    async def _publish_offline(self, client: aiomqtt.Client) -> None:
        """Replace the status: the broker publishes no last will after a clean disconnection."""
        with suppress(aiomqtt.MqttError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await client.publish(self._status, self._state(online=False), _QOS, retain=True)

    def _state(self, *, online: bool) -> bytes:
        return to_json({"service": self._service, "online": online})

    def _note_connected(self) -> None:
        self.connected = True
        _CONNECTED.labels(self._service).set(1)
        self._refused_topics.clear()
        self._reconnector.connected()
        _log.info("connected to the broker", broker=self._settings.broker)


def _credentials(settings: Mqtt) -> tuple[ssl.SSLContext | None, str | None]:
    """Read TLS and password, for each connection, so that files may be replaced. Blocks.

    Raises:
        OSError: The password cannot be read.
        FailedPrecondition: A certificate cannot be read.
    """
    password = None
    if settings.password_file is not None:
        password = settings.password_file.read_text(encoding="utf-8").rstrip("\r\n")
    return None if settings.tls is None else client_context(settings.tls), password


def _value(reason: Any) -> int:
    """Return the number of a SUBACK reason code, an integer or an object."""
    return int(getattr(reason, "value", reason))
