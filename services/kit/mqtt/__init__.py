"""MQTT: a service's connection to the broker, and payloads."""

from services.kit.mqtt.connection import BrokerConnection
from services.kit.mqtt.payload import Message, Refused

__all__ = ["BrokerConnection", "Message", "Refused"]
