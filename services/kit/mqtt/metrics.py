"""What Prometheus sees of MQTT."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

CONNECTED = Gauge("cinquefoil_mqtt_connected", "1: connected to the broker.", ["service"])
PUBLISHED = Counter(
    "cinquefoil_mqtt_published", "Messages that the broker has acknowledged.", ["service"]
)
RECEIVED = Counter("cinquefoil_mqtt_received", "Messages taken in.", ["service", "topic"])
REFUSED = Counter(
    "cinquefoil_mqtt_refused",
    "Messages that could not be used; the log has the reason of the first since connecting.",
    ["service", "topic"],
)
