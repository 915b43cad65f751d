"""A broker as services use it: what they want kept there, and what they want to hear."""

from services.kit.mqtt.connection import BrokerConnection
from services.kit.mqtt.payload import Message, Refused

__all__ = ["BrokerConnection", "Message", "Refused"]
