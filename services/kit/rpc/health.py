"""grpc.health.v1 with Check, Watch and List.

The library's own asyncio servicer has no List, forgets all watchers of a service when one of them
leaves, and lets watchers hold up a drain.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.kit.broadcast import Broadcast
from services.kit.errors import NotFound, ResourceExhausted
from services.kit.rpc import health_list_messages
from services.kit.rpc.access import caller

LIVENESS: Final = "liveness"
"""Name whose status is SERVING for as long as the process answers, also while it drains."""

READINESS: Final = "readiness"
"""Name whose status is that of the whole server."""


TOO_MANY_WATCHES: Final = "TOO_MANY_WATCHES"
"""Reason of the error of a watch beyond these."""

_WATCHES: Final = 1024
"""Watches at a time; callers without an identity may have half of them."""
_WATCHES_EACH: Final = 16  # of one connection


class HealthServicer(health_pb2_grpc.HealthServicer):
    """The health of each service by name; "" is the whole server.

    Args:
        ready: Called whenever the whole server begins to serve.
    """

    def __init__(self, ready: Callable[[], None] = lambda: None) -> None:
        self._ready = ready
        serving = health_pb2.HealthCheckResponse.SERVING
        self._statuses = Broadcast[Mapping[str, int]]({LIVENESS: serving})
        self._watches = Counter[str]()  # by connection

    def set(self, statuses: Mapping[str, int]) -> None:
        """Set the health of the services named; without effect once draining."""
        before = self.ready
        self._statuses.publish({**self._statuses.value, **statuses})
        if self.ready and not before:
            self._ready()

    def begin(self) -> None:
        """Take statuses again after a drain: another server of the process begins."""
        if self._statuses.closed:
            self._statuses = Broadcast(self._statuses.value)

    def drain(self) -> None:
        """Report NOT_SERVING for everything but liveness, for good, and end every watch."""
        names = (name for name in self._statuses.value if name != LIVENESS)
        self.set(dict.fromkeys(names, health_pb2.HealthCheckResponse.NOT_SERVING))
        self._statuses.close()

    @property
    def ready(self) -> bool:
        """True while the whole server serves."""
        return self._statuses.value.get("") == health_pb2.HealthCheckResponse.SERVING

    async def Check(self, request: Any, _context: Any) -> Any:  # noqa: N802 - the protocol's name
        """Return the status of one service."""
        status = self._statuses.value.get(request.service)
        if status is None:
            raise NotFound(f"no service {request.service!r}")
        return health_pb2.HealthCheckResponse(status=status)

    async def List(self, _request: Any, _context: Any) -> Any:  # noqa: N802 - the protocol's name
        """Return the status of every service by name."""
        return health_list_messages.HealthListResponse(
            statuses={
                name: health_pb2.HealthCheckResponse(status=status)
                for name, status in self._statuses.value.items()
            }
        )

    async def Watch(  # noqa: N802 - the protocol's name
        self, request: Any, context: Any
    ) -> AsyncIterator[Any]:
        """Send the status of one service, known or not, then each change until the drain."""
        unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        sent, connection = None, context.peer()
        most = _WATCHES if caller().payer else _WATCHES // 2
        if self._watches[connection] >= _WATCHES_EACH or self._watches.total() >= most:
            raise ResourceExhausted(
                f"at most {_WATCHES_EACH} watches of health on a connection, and {most} in all",
                reason=TOO_MANY_WATCHES,
            )
        self._watches[connection] += 1
        try:
            async for statuses in self._statuses.follow():
                status = statuses.get(request.service, unknown)
                if status != sent:
                    yield health_pb2.HealthCheckResponse(status=status)
                    sent = status
        finally:
            self._watches[connection] -= 1
            if not self._watches[connection]:
                del self._watches[connection]


def add_health(servicer: HealthServicer, server: grpc.aio.Server) -> None:
    """Register `servicer`, List included."""
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if not health_list_messages.KNOWN:
        method = grpc.unary_unary_rpc_method_handler(
            servicer.List,
            health_list_messages.HealthListRequest.FromString,
            health_list_messages.HealthListResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"List": method}),)
        )
