"""grpc.health.v1 with Check, Watch and List."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health_pb2 as typed_health_pb2
from grpc_health.v1.health import aio as health_aio

health_pb2: Any = typed_health_pb2  # its published types lag behind the library: no List


class HealthServicer(health_aio.HealthServicer):
    """The stock servicer plus List, which its asyncio form leaves UNIMPLEMENTED."""

    async def List(  # noqa: N802 - the protocol's name
        self,
        _request: Any,
        _context: Any,
    ) -> Any:
        """Return the status of every service by name."""
        statuses: dict[str, int] = vars(self)["_server_status"]
        return health_pb2.HealthListResponse(
            statuses={
                name: health_pb2.HealthCheckResponse(status=status)
                for name, status in statuses.items()
            }
        )
