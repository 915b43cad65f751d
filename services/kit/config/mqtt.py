"""An MQTT broker: for subscribers outside gRPC, a grid signal, and power meters (docs/mqtt.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from services.kit.config.access import ClientTls
from services.kit.config.section import Positive, Section
from services.kit.net import split_address


def _broker(value: str) -> str:
    _, port = split_address(value)
    if port == 0:
        raise ValueError(f"must be host:port with a port of 1..65535, got {value!r}")
    return value


Broker = Annotated[str, AfterValidator(_broker)]
Topic = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^#+\x00]+$")]
"""One topic, not a pattern of several."""


class PowerMeters(Section):
    """Meters of nodes' wall power, from which PUE is measured instead of assumed.

    Attributes:
        window_s: Window over which wall and device energy are compared, s.
        stale_after_s: Time without a message after which a meter is ignored, s.
    """

    window_s: Annotated[float, Field(ge=10)] = 300.0
    stale_after_s: Positive = 60.0


class Mqtt(Section):
    """The broker, which must speak MQTT 5.

    Attributes:
        broker: "host:port".
        tls: Encryption of the connection; None: plaintext.
        username: User name; empty: none.
        password_file: File that contains only the password, read at each connection.
        client_id: Services connect as "<client_id>-<service>"; two deployments at one broker need
            two, and two prefixes.
        prefix: First levels of all topics.
        keepalive_s: Time without a message after which a connection is dead, s.
        refresh_s: Interval in which unchanged intensities are published again with their age, s.
        power: Meters of the nodes.
    """

    broker: Broker
    tls: ClientTls | None = None
    username: str = ""
    password_file: Path | None = None
    client_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "cinquefoil"
    prefix: Annotated[Topic, Field(pattern=r"^[^$/#+\x00][^#+\x00]*[^/#+\x00]$")] = "cinquefoil"
    keepalive_s: Annotated[int, Field(ge=2, le=3600)] = 30
    refresh_s: Annotated[float, Field(ge=1)] = 60.0
    power: PowerMeters = PowerMeters()

    def _problems(self) -> Iterator[str]:
        if self.password_file is not None and not self.username:
            yield "password_file: needs username, too"
