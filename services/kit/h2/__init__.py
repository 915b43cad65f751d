"""gRPC over HTTP/2 on the event loop: a server and a client's stream without gRPC core's threads.

Both stand on asyncio's buffered protocols: what a read brings is cut into frames in place, and the
handler's task starts in the turn of the loop that read the request.
Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK), gRPC's PROTOCOL-HTTP2.md.
"""

from services.kit.h2.client import ClientStream, OnMessage, open_stream
from services.kit.h2.server import Server
from services.kit.h2.server_state import Limits

__all__ = ["ClientStream", "Limits", "OnMessage", "Server", "open_stream"]
