"""What clients reach: the planner that leads, or nothing but words while it does not lead yet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, cast

import grpc

from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import (
    PlannerServiceServicer,
    add_PlannerServiceServicer_to_server,
)
from services.kit.errors import Unavailable
from services.planner.servicer import PlannerServicer

_METHODS: Final = planner_pb2.DESCRIPTOR.services_by_name["PlannerService"].methods


class Front:
    """Passes calls on, so that a planner which takes over has its clients connected already.

    Attributes:
        planner: What answers; None: this planner stands by, or begins.
    """

    def __init__(self) -> None:
        self.planner: PlannerServicer | None = None

    def register(self, server: grpc.aio.Server) -> None:
        """Have a server pass its calls here."""
        add_PlannerServiceServicer_to_server(cast(PlannerServiceServicer, self), server)

    def leads(self) -> PlannerServicer:
        """Return what answers.

        Raises:
            Unavailable: This planner does not lead.
        """
        if self.planner is None:
            raise Unavailable("this planner does not lead, or not yet", reason="STANDS_BY")
        return self.planner


def _answer(name: str) -> Callable[[Front, Any, Any], Awaitable[Any]]:
    async def call(front: Front, request: Any, context: Any) -> Any:
        return await getattr(front.leads(), name)(request, context)

    return call


def _stream(name: str) -> Callable[[Front, Any, Any], AsyncIterator[Any]]:
    async def call(front: Front, request: Any, context: Any) -> AsyncIterator[Any]:
        async with aclosing(getattr(front.leads(), name)(request, context)) as responses:
            async for response in responses:
                yield response

    return call


for _each in _METHODS:
    setattr(Front, _each.name, (_stream if _each.server_streaming else _answer)(_each.name))
