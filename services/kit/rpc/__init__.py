"""gRPC servers and channels the way every service has them."""

from services.kit.rpc.channel import dial
from services.kit.rpc.server import Serving, serve_until, serving

__all__ = ["Serving", "dial", "serve_until", "serving"]
