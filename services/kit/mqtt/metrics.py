"""Metrics of MQTT."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

CONNECTED = Gauge("cinquefoil_mqtt_connected", "1: connected to the broker.", ["service"])
PUBLISHED = Counter(
    "cinquefoil_mqtt_published", "Messages acknowledged by the broker.", ["service"]
)
RECEIVED = Counter(
    "cinquefoil_mqtt_received", "Messages received and used, by topic.", ["service", "topic"]
)
REFUSED = Counter(
    "cinquefoil_mqtt_refused",
    "Messages that could not be used, by topic; the log has the reason of the first.",
    ["service", "topic"],
)
