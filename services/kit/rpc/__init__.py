"""gRPC servers and channels the way every service has them."""

from services.kit.h2 import Limits
from services.kit.rpc.access import Access, Caller, caller
from services.kit.rpc.channel import dial
from services.kit.rpc.health import HealthServicer
from services.kit.rpc.server import ADDRESS_TAKEN, Serving, Transport, serve_until, serving

__all__ = [
    "ADDRESS_TAKEN",
    "Access",
    "Caller",
    "HealthServicer",
    "Limits",
    "Serving",
    "Transport",
    "caller",
    "dial",
    "serve_until",
    "serving",
]
