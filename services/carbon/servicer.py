"""The carbon service as callers see it: wire <-> board."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceServicer
from services.carbon.board import Board
from services.carbon.convert import intensity_to_wire, time_from_wire
from services.kit.clock import Clock


class CarbonServicer(CarbonServiceServicer):
    """Answers from the board; the guard interceptor maps its errors.

    Args:
        board: What is known.
        grid_clock: Tells grid time.
    """

    def __init__(self, board: Board, grid_clock: Clock) -> None:
        self._board = board
        self._clock = grid_clock

    async def ListZones(self, request: pb.ListZonesRequest, context: Any) -> pb.ListZonesResponse:
        """Return the zones that are followed."""
        return pb.ListZonesResponse(zones=self._board.zones)

    async def GetIntensity(
        self, request: pb.GetIntensityRequest, context: Any
    ) -> pb.GetIntensityResponse:
        """Return the intensity now in force in one zone."""
        intensity = self._board.intensity(request.zone)
        return pb.GetIntensityResponse(intensity=intensity_to_wire(intensity, self._clock.now()))

    async def GetHistory(
        self, request: pb.GetHistoryRequest, context: Any
    ) -> pb.GetHistoryResponse:
        """Return the past intensities of one zone."""
        now = self._clock.now()
        start, end = time_from_wire(request, "start"), time_from_wire(request, "end")
        past = self._board.history(request.zone, start, end or now)
        return pb.GetHistoryResponse(
            intensities=[intensity_to_wire(intensity, now) for intensity in past]
        )

    async def Watch(
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.WatchResponse]:
        """Send a snapshot, then each change until the service drains."""
        snapshot = True
        async for news in self._board.watch(request.zones):
            now = self._clock.now()
            yield pb.WatchResponse(
                snapshot=snapshot,
                intensities=[intensity_to_wire(intensity, now) for intensity in news],
            )
            snapshot = False
