"""An MQTT broker: for subscribers outside gRPC, a grid signal, and power meters (docs/mqtt.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

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


class MqttTls(Section):
    """Encrypts the connection; the broker's name must be its certificate's.

    Attributes:
        ca_file: Authorities that may vouch for the broker, PEM. None: the machine's.
        certificate_file, key_file: What this side shows, PEM. None: nothing.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> MqttTls:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("give both certificate_file and key_file, or neither")
        return self


class PowerMeters(Section):
    """Meters of nodes' wall power, from which PUE is measured instead of assumed.

    Attributes:
        window_s: Wall and device energy are compared over the last so many seconds.
        stale_after_s: A meter that was silent for longer measures no more, s.
    """

    window_s: Annotated[float, Field(ge=10)] = 300.0
    stale_after_s: Positive = 60.0


class Mqtt(Section):
    """The broker, which must speak MQTT 5.

    Attributes:
        broker: "host:port".
        tls: How the connection is encrypted; None: it is not.
        username: Empty: none is asked for.
        password_file: File that holds the password, and nothing else. Read at each connection.
        client_id: Services connect as "<client_id>-<service>"; two deployments at one broker need
            two, and two prefixes.
        prefix: First level, or levels, of all topics.
        keepalive_s: A connection on which nothing was heard for about so long is dead, s.
        refresh_s: How often intensities are told again where they do not change, so that their
            age can be seen to grow, s.
        power: Meters of the nodes.
    """

    broker: Broker
    tls: MqttTls | None = None
    username: str = ""
    password_file: Path | None = None
    client_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "cinquefoil"
    prefix: Annotated[Topic, Field(pattern=r"^[^$/#+\x00][^#+\x00]*[^/#+\x00]$")] = "cinquefoil"
    keepalive_s: Annotated[int, Field(ge=2, le=3600)] = 30
    refresh_s: Annotated[float, Field(ge=1)] = 60.0
    power: PowerMeters = PowerMeters()

    @model_validator(mode="after")
    def _password_has_a_user(self) -> Mqtt:
        if self.password_file is not None and not self.username:
            raise ValueError("password_file: needs username too")
        return self
